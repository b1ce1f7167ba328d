"""Quaymaster for Spark: log-retained queues as a data source and sink, `format("quaymaster")`."""
