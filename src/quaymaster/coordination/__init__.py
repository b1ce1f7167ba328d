"""Agreement: one store, by etcd, SQLite or memory, and what processes find in it."""
