"""Managers: they watch over cells and decide who leads and who holds what. They carry no messages."""
