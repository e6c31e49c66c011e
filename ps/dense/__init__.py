"""The dense weights of a run: each shard keeps one contiguous range of the flat vector."""
