"""Writing events: synthetic ones, public datasets, your own, and deliberately bad ones."""
