"""What a run has done so far: quality, traffic, timings, and the status that shows them."""
