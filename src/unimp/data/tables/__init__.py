"""Everything about a user's tables."""
