"""What ``freshet bench`` runs; every figure in docs/benchmarks.md comes from here."""
