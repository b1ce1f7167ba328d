"""Limits of accounts and queues: which hold for a request, what they have left, how front ends share them."""
