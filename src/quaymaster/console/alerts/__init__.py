"""Alerts at work: kept in the store, evaluated each minute, told to destinations."""
