"""One replica of a journal in this process: commands in, records out, replies."""
