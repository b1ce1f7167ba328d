"""Whether tables are what was recorded, and recorded is what brokers did."""
