"""The SQS API as its clients see it, tested from outside against the real process."""
