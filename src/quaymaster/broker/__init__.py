"""Brokers: they own messages. Of a single server, and of a cell."""
