"""Access policies in IAM's grammar: what they say, whom they name, and whether they allow a request. Pure decisions."""
