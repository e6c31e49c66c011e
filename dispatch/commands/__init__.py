"""An operator's commands, one file each, with their registry and the socket that they come over; never the journal."""
