"""Webhooks by the rules of Standard Webhooks: how requests are signed, and what a receiver's answer means."""
