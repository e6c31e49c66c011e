"""Schemas of requests and answers of the control plane; no queries and no logic."""
