"""The processes of a run on the nodes of a Ray cluster. What a process does, and when it is restarted, is decided
elsewhere.
"""
