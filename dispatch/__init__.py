"""Decides which worker trains which sample: the index, the directory, the policies, and the order of steps."""
