"""Consumer groups: pure state machines, one shard for each partition of `__consumer_offsets`."""
