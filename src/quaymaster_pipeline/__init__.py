"""The usage pipeline: blocks of usage records become tables of what was asked for, by whom, and how much.

    queue quaymaster-usage ──bronze──▶ blocks ──silver──▶ usage_events, audit_events, quarantine
                                                            └──gold──▶ usage_hourly, usage_daily

Each layer takes the batches that the one before it has and it has not, and commits one table after the other.
"""
