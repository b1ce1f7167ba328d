"""Accounts and what belongs to them: users, roles, policies, issuers, limits, keys, sign-ins."""
