"""The strongest answer: members, their weights, and the ensemble that combines them."""
