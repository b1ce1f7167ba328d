"""What a leader does besides answering: expiry, snapshots, compaction. Each in small steps between requests."""
