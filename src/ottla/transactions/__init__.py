"""Transactions: pure state machines, one shard for each partition of `__transaction_state`."""
