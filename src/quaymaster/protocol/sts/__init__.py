"""The subset of AWS STS on the SQS endpoint: shapes, and rules of inputs."""
