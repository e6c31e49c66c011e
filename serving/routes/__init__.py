"""Routes of the serving process."""
