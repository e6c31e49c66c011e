"""A whole run on this machine: settings, processes, supervision, display."""
