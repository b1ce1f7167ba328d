"""One partition of a queue: its messages, deliveries and stages, and the questions about them."""
