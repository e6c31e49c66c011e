"""Serving: follows the checkpoints of a run, and answers with the newest model that is good enough to go out."""
