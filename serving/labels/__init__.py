"""Delayed labels: served predictions are logged, and labels that arrive later are joined to them.

Training does not use them.
"""
