"""The group membership of a consumer as pure state machines: `classic` and `consumer` (KIP-848); `member` is
their interface.
"""
