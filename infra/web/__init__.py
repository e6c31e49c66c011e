"""The HTTP layer that the control plane and serving share; nothing about runs, journals, models or predictions."""
