"""How long a step would take on sets of workers that do not exist yet: simulated decisions, measured or given times."""
