"""An operator's commands, one file each, with their registry and the socket they arrive over; never the journal."""
