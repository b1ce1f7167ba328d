"""Logs as their readers want them: recent messages, and blocks of older ones."""
