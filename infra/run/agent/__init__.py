"""The supervisor's control socket: further workers for a run under way, and the supervisor of workers elsewhere."""
