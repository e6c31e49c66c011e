"""The phases of a step's rounds, and how many workers may take part in them; ps/protocol.py says what each is for."""

EARLY = 0
TRAIN = 1
EVICT = 2
FLUSH = 3
"""the first flush after a step; those that follow it at the same step count on from here"""
LAST_FLUSH = 255
MOST_WORKERS = 128
"""of a generation"""
