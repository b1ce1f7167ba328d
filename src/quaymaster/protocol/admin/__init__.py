"""The admin API: its table of operations, the shapes of what they take and answer, their requests, their document."""
