"""Consumer groups: pure state machines, one shard a partition of `__consumer_offsets`; `broker/coordinators/coordinator.py` drives them."""
