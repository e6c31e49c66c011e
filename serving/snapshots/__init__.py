"""Snapshots on disk: which one people want, how two differ, and export; none is loaded to be served."""
