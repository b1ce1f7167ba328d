"""Work on a partition that is done in slices, and the records of moves, claims, completions and transactions."""
