"""What processes of a cell say to each other: frames, and the calls in them."""
