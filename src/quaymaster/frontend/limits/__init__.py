"""How much callers may take: rates, shared between front ends, places for polls, who is refused before being read."""
