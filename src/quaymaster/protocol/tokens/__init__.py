"""Tokens that carry their own content, encrypted: session tokens."""
