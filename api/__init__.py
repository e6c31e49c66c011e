"""The control plane over REST: what runs do and did, and commands to them; no predictions, and no HTTP of its own."""
