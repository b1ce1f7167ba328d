"""Requests to queues of several partitions: tables newer than rows, spread commands, watches that polls share."""
