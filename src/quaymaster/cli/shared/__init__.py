"""What commands share: options, connections, clients, output, failures, settings."""
