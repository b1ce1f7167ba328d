"""Tables: their files, logs, schemas, and the stores that have them."""
