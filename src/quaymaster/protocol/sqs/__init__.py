"""SQS on the wire: shapes, the Query form, errors, names, attributes, signatures, receipts, checksums."""
