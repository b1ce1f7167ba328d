"""What can be asked of the SQS endpoint beyond its forms: rules of messages, own actions, validation."""
