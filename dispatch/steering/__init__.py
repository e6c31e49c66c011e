"""Carries out commands between two steps, once each, and applies the desired state; it does not define commands."""
