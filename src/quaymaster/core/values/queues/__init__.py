"""What a queue is: its name, attributes and their rules, definition and marks."""
