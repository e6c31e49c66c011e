"""The journal for its readers, and news for those who serve the model, over a socket of their own; no commands."""
