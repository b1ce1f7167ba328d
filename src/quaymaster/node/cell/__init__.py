"""What makes a process one of a cell: its transport, its place among the others, and how it finds them."""
