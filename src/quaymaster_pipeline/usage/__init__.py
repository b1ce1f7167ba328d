"""Blocks of usage records through bronze and silver to gold."""
