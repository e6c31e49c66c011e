"""The checker: whether what a run left behind is whole, and what it promises."""
