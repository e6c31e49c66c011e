"""What requests and answers of the control plane look like; nothing that asks or computes."""
