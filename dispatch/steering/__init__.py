"""Carries out commands between two steps, once each, and puts what is wanted in force; what commands are is below."""
