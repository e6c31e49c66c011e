"""The exact solvers in plain numpy, which the fast ones are tested against."""
