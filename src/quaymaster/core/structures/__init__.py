"""Structures that a partition is made of: packed rows, numbers, orders, timers. They know no commands."""
