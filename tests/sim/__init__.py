"""Simulated runs, each from one seed: the broker under power cuts, and the replication protocol as a model."""
