"""Quaymaster: Amazon SQS that anyone can run."""

__version__ = "0.1.0"
