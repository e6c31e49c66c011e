"""Commands that inspect and change live runs: over the API or, on a run's machine, over its sockets."""
