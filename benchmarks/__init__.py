"""What ``freshet bench`` measures; every figure in docs/benchmarks.md comes from here."""
