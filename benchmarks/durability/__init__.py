"""What keeping the model on disk costs."""
