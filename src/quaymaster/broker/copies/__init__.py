"""Copies of journals: how one is read, checked and put in a place; and backups, which are made of them."""
