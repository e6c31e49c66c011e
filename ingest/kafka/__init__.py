"""Kafka as source and sink of events, on kafka-python or confluent-kafka."""
