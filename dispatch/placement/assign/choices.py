"""The values of settings about assignment. Loads no kernels."""

from typing import Literal

Backend = Literal["cpu", "cuda", "hungarian"]
"""Where exact assignment runs, and by which method: cuda is the same method on a GPU, hungarian the
papers' on a GPU.
"""
OptBackend = Literal["cpu", "cuda", "hungarian", "auto"]
"""One of them, or the faster of cpu and cuda."""
Criterion = Literal["min2-min", "min3-min", "min3-min2", "mean"]
"""The order in which samples are placed if not all are assigned exactly: by regret, or the most expensive first."""
