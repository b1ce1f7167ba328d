"""Metadata: queues, accounts and keys. Kept in a store, in memory for reading."""
