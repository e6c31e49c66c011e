"""Carries out commands between two steps, once each, and applies the desired state; the commands themselves are in
dispatch/commands.
"""
