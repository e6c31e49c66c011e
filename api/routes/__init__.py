"""What can be asked for, one module per resource."""
