"""Tests of the benchmarks of serving."""
