"""The phases of a step's rounds, and how many workers may take part in them; ps/protocol.py says what each is for."""

EARLY = 0
TRAIN = 1
EVICT = 2
FLUSH = 3
"""The first flush after a step; further flushes at the same step count up from here."""
LAST_FLUSH = 255
MOST_WORKERS = 1024
"""Most workers of a generation."""
