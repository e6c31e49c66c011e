"""Checkpoints: the model on disk. A shard's part of a checkpoint, and how a shard goes back to one."""
