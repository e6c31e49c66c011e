"""Alpha from contention: what the dispatcher measures once a second, and what it changes by it."""
