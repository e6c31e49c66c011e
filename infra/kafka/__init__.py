"""One Kafka broker on this machine."""
