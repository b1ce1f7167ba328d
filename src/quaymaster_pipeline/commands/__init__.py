"""What the pipeline adds to the command line."""
