"""Tests of the Python client, against real servers."""
