"""The handlers of actions, of messages, queues, logs and transactions."""
