"""The supervisor's control socket: additional workers for a live run, and the supervisor of workers
on other machines.
"""
