"""The dispatcher's side of checkpoints: its own part, when a checkpoint is whole, and which are kept."""
