"""The past of queue metrics, in SQLite files: a day of minutes, of five minutes or of hours each.

    DIR/state.sqlite            rows of leaders as they were when the last minute was closed; names of queues
    DIR/60/2026-11-28.sqlite    minutes, kept for 15 days
    DIR/300/2026-11-28.sqlite   five minutes together, for 63 days
    DIR/3600/2026-11-28.sqlite  hours, for 455 days

A minute is written with the state it leaves, in one transaction over all files concerned: a crash loses no count, and
counts none twice.
"""
