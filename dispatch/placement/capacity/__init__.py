"""How many samples each worker gets, and the cost of its link."""
