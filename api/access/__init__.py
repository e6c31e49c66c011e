"""Who may do what, and how much of it: bearer tokens, limits, connections."""
