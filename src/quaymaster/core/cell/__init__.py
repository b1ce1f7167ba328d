"""A cell as a whole: who leads what, where journals are placed, and what stores and backups agree on."""
