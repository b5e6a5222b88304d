"""Authentication between brokers."""
