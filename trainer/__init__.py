"""The worker: a cache of rows, the models, and the bulk-synchronous step."""
