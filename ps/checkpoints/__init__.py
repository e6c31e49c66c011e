"""Checkpoints: the model on disk. A shard's part of one, and how a shard goes back to one."""
