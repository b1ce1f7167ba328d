"""What is wrong with tables, as one sentence. Imports nothing, so that the command line can know it at no cost."""

from __future__ import annotations


class BrokenTable(Exception):
    """A file of a table, or the log that says which files it has, is gone or cannot be read.

    The message names the table and the file, and says what to do.
    """
