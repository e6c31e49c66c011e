"""The cost of keeping the model on disk."""
