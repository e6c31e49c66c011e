"""From costs to an assignment: what a sample costs where, and the solvers that place a batch."""
