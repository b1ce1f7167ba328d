"""Jobs in their order, and the upkeep of tables."""
