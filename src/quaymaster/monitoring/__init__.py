"""Metrics, logs, health, and tasks that are watched."""
