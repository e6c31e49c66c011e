"""The checker: whether what a run left behind is complete and correct."""
