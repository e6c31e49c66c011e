"""The two client libraries behind one interface."""
