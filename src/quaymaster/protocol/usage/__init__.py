"""Usage records, and the blocks in which they are kept and shipped."""
