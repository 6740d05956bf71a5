"""Fast arithmetic on hops: attention and neighbor sampling."""
