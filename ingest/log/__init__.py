"""The embedded log: a small durable topic on this machine."""
