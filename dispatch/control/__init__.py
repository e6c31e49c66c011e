"""Commands to a running dispatcher: who may take part, whether to train, when to save."""
