"""`quaymaster local`: a cell on this machine."""
