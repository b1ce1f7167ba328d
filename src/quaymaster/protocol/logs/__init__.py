"""Messages of logs in columns: how blocks of them are built and read."""
