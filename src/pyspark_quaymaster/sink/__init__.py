"""The sink: rows become messages, staged in a transaction or sent at least once."""
