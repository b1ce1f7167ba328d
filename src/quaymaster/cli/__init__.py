"""People's hands: the `quaymaster` command, and where the roles are put together."""
