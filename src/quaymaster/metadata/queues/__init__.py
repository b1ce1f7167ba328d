"""Queues as metadata has them: created, placed, permitted, declared."""
