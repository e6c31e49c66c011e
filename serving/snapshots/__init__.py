"""Snapshots on disk: which one operators want, how two differ, and export. Loading for serving is elsewhere."""
