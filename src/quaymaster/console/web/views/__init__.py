"""What pages show, decided without any I/O: order, words, bars and charts."""
