"""Where requests come in: sockets, listeners and the front end of a process."""
