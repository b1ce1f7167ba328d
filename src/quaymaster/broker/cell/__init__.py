"""What makes a broker one of a cell: its name, its links to others, copies, calls, moved messages."""
