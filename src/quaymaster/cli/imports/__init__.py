"""`quaymaster import`: queues and their messages from another SQS-compatible service."""
