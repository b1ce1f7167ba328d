"""Commands of queues and messages, over the SQS API."""
