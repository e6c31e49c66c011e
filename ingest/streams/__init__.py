"""What a source and a sink of records are, and which ones the settings name."""
