"""Delayed labels: served predictions are logged, and labels that come later are joined to them; nothing is trained."""
