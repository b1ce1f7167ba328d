"""Which queue a call is about, and whether its caller may do what it asks."""
