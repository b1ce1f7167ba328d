"""Billing: from hourly usage to invoices. Prices, rating and invoices are pure; `store` and `service` do the I/O."""
