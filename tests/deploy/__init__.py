"""What is in `deploy/`: judged by linters, compared with the program, and run as far as that goes without an engine."""
