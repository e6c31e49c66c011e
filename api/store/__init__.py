"""SQL of the control plane: what journals say, for people to look at, and commands; no tokens, no audit trail."""
