"""The command line, against a server that plays a part, and (slow) the installed program."""
