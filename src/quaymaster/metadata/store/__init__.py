"""How metadata is kept: rows, mirrors of them, ids, and feeds of changes."""
