"""Push: when messages of a queue are sent to its endpoint, how many at once, and what comes of the answers."""
