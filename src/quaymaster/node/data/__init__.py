"""The data directory of a process: whose it is, which store it was begun with, and that its parts are of one moment."""
