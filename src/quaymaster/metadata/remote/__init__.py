"""Metadata as metadata nodes of a cell have it, in the memory of a front end."""
