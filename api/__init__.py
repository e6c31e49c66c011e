"""The control plane over REST: reads the state and history of runs, and gives commands to them.

Predictions belong to ``serving``, and the HTTP server itself to ``infra/web``.
"""
