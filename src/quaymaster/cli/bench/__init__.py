"""`quaymaster bench`: a load, and what it measures."""
