"""The journal of a run: the durable record of decisions, from which the run can be repeated bit for bit."""
