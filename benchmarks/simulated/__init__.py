"""What policies would move, simulated: the live index, policies and directory on a stream of keys, without training."""
