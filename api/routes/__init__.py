"""What can be asked for, one module per resource; what is true is asked of ``runs`` and ``store``."""
