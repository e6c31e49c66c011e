"""Dead letters: rejected events, each kept once with its reason."""
