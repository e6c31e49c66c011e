"""Which metrics Freshet's processes have."""
