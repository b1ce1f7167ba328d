"""Accounts, access keys, sessions, and the keys that messages are encrypted with."""
