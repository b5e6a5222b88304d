"""Transactions: pure state machines, one shard a partition of `__transaction_state`; the broker drives
them."""
