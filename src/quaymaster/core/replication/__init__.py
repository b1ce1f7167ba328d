"""One journal on several brokers: its log, its leader, its clock, and the queues on top."""
