"""Chaos: a real run whose processes are killed and stopped at random, and then checked."""
