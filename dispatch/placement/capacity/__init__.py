"""How many samples each worker gets, and what its link costs."""
