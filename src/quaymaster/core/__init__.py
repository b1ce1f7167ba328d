"""Decisions: what a message, a queue, a journal and a cell are, and what happens to them. Pure."""
