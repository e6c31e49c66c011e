"""Quality, traffic and timings of a run so far, what decisions learn from them, and the status that shows them."""
