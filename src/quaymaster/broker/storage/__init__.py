"""Files of a journal: segments, snapshots, chunks of the index, and the thread that writes."""
