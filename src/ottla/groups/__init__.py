"""Consumer groups: pure state machines, one shard a partition of `__consumer_offsets`; `broker/coordinating.py` drives them."""
