"""The usage pipeline: blocks of usage records become tables of what was asked for, by whom, and how much.

    queue quaymaster-usage ──bronze──▶ request_events ──silver──▶ usage_events, audit_events, quarantine
                                                                    └──gold──▶ usage_hourly, usage_daily

Every job takes the batches that the table before it has and its own has not, and commits one after the other.
"""
