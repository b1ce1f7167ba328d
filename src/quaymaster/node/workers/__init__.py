"""A server in several processes: one that looks after the others, and these, the workers, which serve."""
