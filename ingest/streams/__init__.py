"""The interfaces of sources and sinks of records, and positions in them."""
