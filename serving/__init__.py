"""Serving: follows the cuts of a run, and answers with the newest model that is good enough to go out."""
