"""What is known of every row: its number, who holds it, and what a step moves."""
