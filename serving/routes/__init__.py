"""The HTTP routes of a server; predictions are computed elsewhere."""
