"""Broker epochs: a number for each registration of a broker, higher than the one before, and not guessable.

    order, 24 bits | random, 39 bits

The order is the number of the registration in the cluster store, so that epochs of one broker can be
compared. The broker chooses the random bits. They are a second check after the handshake between brokers
(`security/broker_handshake.py`): a request is accepted only from a proven broker, and only with its current
epoch. Clients never receive an epoch.
"""

from __future__ import annotations

from typing import Final

_RANDOM_RANGE: Final = 1 << 39
TOKEN_BYTES: Final = 5


def proposed_epoch(newest_known: int, token: bytes) -> int:
    """The epoch that a broker requests: after the newest one it had, or after -1 if it knows none."""
    random = int.from_bytes(token, "big") % _RANDOM_RANGE
    return (max(newest_known, 0) // _RANDOM_RANGE + 1) * _RANDOM_RANGE + random


def registered_epoch(proposed: int, number: int, present: int = 0) -> int:
    """The epoch that the store assigns: the proposed one, raised above all earlier ones.

    `number` counts the registrations, and `present` is the epoch of a registration that this one replaces.
    """
    order = max(proposed // _RANDOM_RANGE, number, present // _RANDOM_RANGE + 1)
    return order * _RANDOM_RANGE + proposed % _RANDOM_RANGE
