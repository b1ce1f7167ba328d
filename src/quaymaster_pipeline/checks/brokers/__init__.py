"""Whether usage is what the brokers counted: messages sent and deleted of each queue, and what explains losses."""
