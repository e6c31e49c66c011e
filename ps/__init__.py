"""The parameter server: rows, their optimizer state and the last step that trained each, by shard."""
