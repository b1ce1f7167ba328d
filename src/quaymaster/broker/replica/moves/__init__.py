"""Messages that leave a journal for another one, and where queues have their partitions."""
