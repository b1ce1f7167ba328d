"""Which message is delivered next: indexes of standard and FIFO partitions, groups and claims."""
