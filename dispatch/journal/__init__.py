"""The journal of a run: what was decided, durably, so that the run can be repeated bit for bit."""
