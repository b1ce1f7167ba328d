"""Who calls: signatures and keys, sessions, users, and what is kept of those that were wrong."""
