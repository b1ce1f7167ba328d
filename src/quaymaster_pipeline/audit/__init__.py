"""Audit events: search, proof, holds, expiry."""
