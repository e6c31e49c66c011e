"""Which worker trains which sample: pure functions of batches, members and measured times; no sockets, no files."""
