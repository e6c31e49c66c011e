"""Rows of the model in memory: a flat table, and the index that finds a key in it; no files."""
