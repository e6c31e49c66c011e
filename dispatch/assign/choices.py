"""What a setting may choose about an assignment. Loads no kernels."""

from typing import Literal

OptBackend = Literal["cpu", "cuda", "auto"]
"""where exact assignment runs"""
Criterion = Literal["min2-min", "min3-min", "min3-min2", "mean"]
"""which samples are assigned exactly when not all are: those with the highest regret, or the dearest on average"""
