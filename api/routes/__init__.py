"""The HTTP routes, one module per resource; they get all facts from ``runs`` and ``store``."""
