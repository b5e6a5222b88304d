"""The embedded protocol of classic members: subscriptions and assignments, as consumers write them.

    subscription   int16 version 2 | topics | userdata | owned: topic, partitions … | int32 generation of what it owns
    assignment     int16 version 0 | topic, partitions … | userdata

The leader assigns. `range_like` assigns everything from scratch, each topic in ranges. `cooperative` leaves
every member its partitions, up to its share, and assigns to others only free ones. So a partition that moves
is revoked in one generation and assigned in the next. Pure; called by `classic_reader.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

#: A partition by topic name.
Named = tuple[str, int]


class Subscription(NamedTuple):
    topics: tuple[str, ...]
    owned: tuple[Named, ...] = ()
    generation: int = -1


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        value: int = struct.unpack_from(form, self._data, self._at)[0]
        self._at += struct.calcsize(form)
        return value

    def text(self) -> str:
        size = self.number(">h")
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def skip_bytes(self) -> None:
        size = self.number(">i")
        self._at += max(size, 0)

    def places(self) -> tuple[Named, ...]:
        found: list[Named] = []
        for _ in range(self.number(">i")):
            topic = self.text()
            found += [(topic, self.number(">i")) for _ in range(self.number(">i"))]
        return tuple(found)


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def _places(places: Sequence[Named]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(places):
        by_topic.setdefault(topic, []).append(number)
    out = struct.pack(">i", len(by_topic))
    for topic, numbers in by_topic.items():
        out += _text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return out


def encode_subscription(said: Subscription) -> bytes:
    topics = struct.pack(">hi", 2, len(said.topics)) + b"".join(map(_text, said.topics))
    return topics + struct.pack(">i", -1) + _places(said.owned) + struct.pack(">i", said.generation)


def decode_subscription(data: bytes) -> Subscription:
    reader = _Reader(data)
    reader.number(">h")
    topics = tuple(reader.text() for _ in range(reader.number(">i")))
    reader.skip_bytes()
    return Subscription(topics, reader.places(), reader.number(">i"))


def encode_assignment(places: Sequence[Named]) -> bytes:
    return struct.pack(">h", 0) + _places(places) + struct.pack(">i", -1)


def decode_assignment(data: bytes) -> tuple[Named, ...]:
    if not data:
        # A member that the leader did not include.
        return ()
    reader = _Reader(data)
    reader.number(">h")
    return reader.places()


# --- the leader's part ----------------------------------------------------------------------------------------------


def range_like(members: Mapping[str, Subscription], counts: Mapping[str, int]) -> dict[str, list[Named]]:
    """Each topic in ranges, one per subscribed member."""
    given: dict[str, list[Named]] = {member: [] for member in members}
    for topic, count in sorted(counts.items()):
        readers = sorted(member for member, said in members.items() if topic in said.topics)
        for at, member in enumerate(readers):
            first, last = at * count // len(readers), (at + 1) * count // len(readers)
            given[member] += [(topic, number) for number in range(first, last)]
    return given


def cooperative(members: Mapping[str, Subscription], counts: Mapping[str, int]) -> dict[str, list[Named]]:
    """As few moves as possible; an owned partition is not assigned to another member in this generation. All
    members have the same subscription.
    """
    names = sorted({topic for said in members.values() for topic in said.topics})
    places = [(topic, number) for topic in names for number in range(counts.get(topic, 0))]
    claims: dict[Named, list[tuple[int, str]]] = {}
    for member, said in members.items():
        for place in said.owned:
            claims.setdefault(place, []).append((said.generation, member))
    share = -(-len(places) // len(members))
    given: dict[str, list[Named]] = {member: [] for member in members}
    free = []
    for place in places:
        claim = sorted(claims.get(place, ()), reverse=True)
        if not claim:
            free.append(place)
        elif len(claim) > 1 and claim[0][0] == claim[1][0]:
            continue
        elif len(given[claim[0][1]]) < share:
            given[claim[0][1]].append(place)
    for place in free:
        given[min(given, key=lambda member: (len(given[member]), member))].append(place)
    return given
