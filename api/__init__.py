"""The control plane over REST."""
