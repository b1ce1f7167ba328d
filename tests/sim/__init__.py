"""The whole broker on a simulated disk, clock and scheduler: one seed is one run."""
