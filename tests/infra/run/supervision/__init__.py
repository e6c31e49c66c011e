"""Tests of starting, watching and stopping processes."""
