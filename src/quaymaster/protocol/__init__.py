"""Bytes and what they mean. Pure."""
