"""Key services: Vault, AWS KMS and keys of the server's own, for master keys and for queues with KmsMasterKeyId."""
