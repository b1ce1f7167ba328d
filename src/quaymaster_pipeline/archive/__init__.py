"""Logs in Parquet tables: archived, verified, then deleted by the broker; read again, replayed, erased."""
