"""From events to batches: codecs, the embedded log, validation, and the prefetching loader."""
