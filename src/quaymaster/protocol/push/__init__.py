"""Calls to the endpoints of queues as bytes: requests, what their answers mean, and the handshake before them."""
