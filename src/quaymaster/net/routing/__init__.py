"""The way to brokers and metadata nodes: who is asked, who next, for how long."""
