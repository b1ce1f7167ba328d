"""What an import from another queue service does: how its queues and messages are to be here, and when it is over."""
