"""Conversion of records to samples and back: JSON and packed."""
