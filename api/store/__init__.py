"""The tables of the control plane: runs, as projected from their journals, and commands.

Tokens and the audit trail are in ``infra/web/store``.
"""
