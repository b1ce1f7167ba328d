"""All queues of a journal: what records make of them, and what a leader decides."""
