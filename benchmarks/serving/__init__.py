"""Benchmarks of the serving process."""
