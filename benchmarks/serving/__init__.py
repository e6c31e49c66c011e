"""What serving costs, and how fresh its model is."""
