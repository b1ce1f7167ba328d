"""Processes put together: a server, and each role of a cell; what they find in a data directory."""
