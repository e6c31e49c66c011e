"""The runs that the control plane knows: where they are, what they say, what they are told; no routes, no tables."""
