"""Records to samples and back: JSON and packed."""
