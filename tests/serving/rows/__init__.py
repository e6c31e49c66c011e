"""Tests of rows in memory."""
