"""What can be asked of a server; predictions are computed elsewhere."""
