"""What a step would take on sets of workers that nobody has started: simulated decisions, measured or given times."""
