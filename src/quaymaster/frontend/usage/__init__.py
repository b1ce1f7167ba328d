"""What was used, and who changed what: recorded, spooled, chained and shipped."""
