"""What a setting may choose about an assignment. Loads no kernels."""

from typing import Literal

Backend = Literal["cpu", "cuda", "hungarian"]
"""where exact assignment runs, and by which method: cuda is the same on a GPU, hungarian the papers' on a GPU"""
OptBackend = Literal["cpu", "cuda", "hungarian", "auto"]
"""one of them, or the faster of cpu and cuda"""
Criterion = Literal["min2-min", "min3-min", "min3-min2", "mean"]
"""in which order samples are placed when not all are assigned exactly: by regret, or the dearest on average first"""
