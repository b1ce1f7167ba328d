"""The real server as a process: killed, stopped, filled up, and started again on what it left."""
