"""Adjusts alpha to contention: what the dispatcher measures once a second, and what it changes in response."""
