"""What a source and a sink of records are, and positions in them."""
