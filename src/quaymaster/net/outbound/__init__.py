"""All HTTP calls to other systems but etcd: one client with bounds, and rules for the addresses customers name."""
