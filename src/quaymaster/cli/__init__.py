"""People's hands: the `quaymaster` command."""
