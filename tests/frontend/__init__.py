"""The front end over real HTTP, with a small broker in memory behind it."""
