"""The freshet command."""
