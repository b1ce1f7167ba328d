"""Front ends: they speak SQS, and keep nothing."""
