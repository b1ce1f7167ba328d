"""Tokens that clients carry: session tokens, which the server encrypts, and web identity tokens of other issuers."""
