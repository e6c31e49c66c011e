"""The click models: embeddings, wide weights and dense inputs in, one logit a sample out."""
