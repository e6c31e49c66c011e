"""Tests of the catalogue of metrics."""
