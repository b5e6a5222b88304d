"""Broker epochs: a number for each registration of a broker, higher than the one before it, and not to be guessed.

    order, 24 bits | random, 39 bits

The order is the number of the registration in the cluster store, so epochs of one broker can be compared. The random bits are
chosen by the broker itself. They are a second lock behind the handshake between brokers (`security/broker_handshake.py`): a
request is accepted from a proven broker only, and with its present epoch only. Clients are never sent an epoch.
"""

from __future__ import annotations

from typing import Final

_RANDOM_RANGE: Final = 1 << 39
TOKEN_BYTES: Final = 5


def proposed_epoch(newest_known: int, token: bytes) -> int:
    """The epoch that a broker asks for: after the newest one that it knows of itself, -1 if it knows none."""
    random = int.from_bytes(token, "big") % _RANDOM_RANGE
    return (max(newest_known, 0) // _RANDOM_RANGE + 1) * _RANDOM_RANGE + random


def registered_epoch(proposed: int, number: int, present: int = 0) -> int:
    """The epoch that the store gives: the proposed one, after all that were given before.

    `number` counts the registrations, and `present` is the epoch of a registration that this one replaces.
    """
    order = max(proposed // _RANDOM_RANGE, number, present // _RANDOM_RANGE + 1)
    return order * _RANDOM_RANGE + proposed % _RANDOM_RANGE
