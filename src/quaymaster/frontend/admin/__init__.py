"""The admin API: what it answers, and the acts that it notes."""
