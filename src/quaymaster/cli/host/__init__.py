"""Commands of this machine: a server of its own, its files, certificates, profiles."""
