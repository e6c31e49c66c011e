"""Versions of the model on disk: which one people want, how two differ, and export for other programs."""
