"""The console: web pages, history and alerts, in a process of its own (extra `console`)."""
