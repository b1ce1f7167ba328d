"""Processes that a process starts, and what it takes to be one."""
