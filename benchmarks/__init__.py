"""The measurements of ``freshet bench``; every figure in docs/results.md and docs/lab-diary.md comes from here."""
