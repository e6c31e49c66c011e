"""The workers and shards that the dispatcher talks to: membership, messages to them, losses."""
