"""What ``freshet bench`` measures; every figure in docs/results.md and docs/lab-diary.md comes from here."""
