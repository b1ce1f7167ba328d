"""Queues as an operator sees them: figures, partitions, groups, endpoints."""
