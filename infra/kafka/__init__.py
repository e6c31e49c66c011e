"""Starts one Kafka broker on this machine."""
