"""The stores behind the one interface of coordination: SQLite, etcd, and memory for tests."""
