"""Checkpoints on the dispatcher's side: when one is due, its own part, whether it may be served, which are kept."""
