"""The metrics of all processes."""
