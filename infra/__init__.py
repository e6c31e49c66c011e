"""The base that every process stands on, and on top of all others: settings, supervisor, command line."""
