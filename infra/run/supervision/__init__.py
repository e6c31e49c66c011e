"""Processes of a run: started, watched, restarted and stopped in order."""
