"""Plans: simulated decisions and predicted times."""
