"""From costs to an assignment: the cost of each sample on each worker, and the solvers that place a batch."""
