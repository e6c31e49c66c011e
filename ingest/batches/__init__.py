"""Forming batches ahead of training, and again from their manifests."""
