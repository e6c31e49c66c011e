"""Kernels over the bytes of records."""
