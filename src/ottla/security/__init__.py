"""Authentication: the proof between brokers. TLS, SASL for clients and ACLs belong here too."""
