"""The console as a process: of a cell, or next to a server, which starts it again when it ends."""
