"""Alerts: what they are, whether they fire, and what is told of it. Without I/O: points come in, decisions go out."""
