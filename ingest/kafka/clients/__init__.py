"""The two Kafka client libraries; nothing outside this folder imports them."""
