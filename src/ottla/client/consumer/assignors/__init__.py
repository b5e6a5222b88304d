"""Who of a classic group reads what, as the group's leader decides: Kafka's assignors, and the protocol for one's own."""
