"""What several test folders share: the real process, and clients that speak to it byte by byte."""
