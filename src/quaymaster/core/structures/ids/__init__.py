"""Ids that are remembered for a while: of sends, of deduplication, of settled deliveries."""
