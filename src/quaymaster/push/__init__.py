"""Pushing: messages of queues with a PushEndpoint are received, sent to it by HTTP, and deleted or hidden again."""
