"""Sends the journal to its readers and announces snapshots to servers, over a socket of their own; no commands."""
