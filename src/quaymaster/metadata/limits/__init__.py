"""Limits of accounts and queues: the rows that operators change, and how a metadata node divides them."""
