"""The parameter server: rows, their optimizer state and versions, by shard."""
