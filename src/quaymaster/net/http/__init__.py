"""HTTP/1.1: the server, what strangers get of it, a small client, and the probe port."""
