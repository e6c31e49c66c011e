"""The cost of serving, and how fresh its model is."""
