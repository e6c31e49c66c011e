"""Everyone the dispatcher talks to: workers, and the shards; who they are, what they are told, who is lost."""
