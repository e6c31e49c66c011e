"""The commands that look at runs under way and change them: over the API or, on a run's machine, over its sockets."""
