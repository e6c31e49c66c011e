"""The runs that the control plane follows: their folders, statuses and journals, and delivery of commands to them.

Routes and tables are elsewhere.
"""
