"""Serving: follows a run's checkpoints, and answers with the newest good model; trains nothing, commands nobody."""
