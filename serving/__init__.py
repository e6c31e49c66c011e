"""Serving: follows a run's checkpoints and answers predictions with the newest good model.

It neither trains nor gives commands to a run.
"""
