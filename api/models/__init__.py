"""The schemas of requests and answers of the control plane; nothing that asks or computes."""
