"""Tests of the benchmarks of the control plane."""
