"""The assignors of classic groups: Kafka's own, and the interface for custom ones."""
