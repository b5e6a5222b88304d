"""Who reads what: the assignments that the broker computes for consumer groups (KIP-848), and sticky ones of the client.

Pure functions from members, with what they were assigned before, to what they are assigned next. Every partition of a topic that
somebody has subscribed to goes to exactly one of those who have.

`uniform`, the default: shares that are as even as the subscriptions allow; as few partitions as possible move from one member to
another; where the racks of members and replicas are known, what has to find a new reader goes to one in its own rack if the
shares allow it. Rest before racks: nothing moves just to be nearer.
`range`: topic by topic, each member a range of partition numbers in the order of the members' names, so that the same
numbers of several topics meet at one member. Racks cannot matter there.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Protocol, TypeAlias


class Racks(Protocol):
    """A topic as assignors see it."""

    @property
    def racks(self) -> Sequence[frozenset[str]]:
        """By partition number: the racks in which its replicas are, as far as racks are known."""


#: (topic id, number); the client has the topic's name for an id.
Place: TypeAlias = tuple[bytes, int]
Places: TypeAlias = frozenset[Place]
Topics: TypeAlias = Mapping[bytes, Racks]

NOTHING: Final[Places] = frozenset()


class Reader(NamedTuple):
    """A member as an assignor sees it; `topics` are ids of topics that exist, `had` is its last target."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    topics: frozenset[bytes]
    had: Places = NOTHING


Assignor: TypeAlias = Callable[[Sequence[Reader], Topics], dict[str, Places]]


def uniform(readers: Sequence[Reader], topics: Topics) -> dict[str, Places]:
    if not readers:
        return {}
    first = readers[0].topics
    if all(reader.topics == first for reader in readers):
        return _equal_shares(readers, topics)
    return _FairShares(readers, topics).settle()


def range_(readers: Sequence[Reader], topics: Topics) -> dict[str, Places]:
    shares: dict[str, set[Place]] = {reader.member_id: set() for reader in readers}
    in_order = sorted(readers, key=lambda reader: reader.instance_id or reader.member_id)
    for topic_id in {topic_id for reader in readers for topic_id in reader.topics}:
        names = [reader.member_id for reader in in_order if topic_id in reader.topics]
        least, extra = divmod(len(topics[topic_id].racks), len(names))
        at = 0
        for position, name in enumerate(names):
            end = at + least + (position < extra)
            shares[name].update((topic_id, number) for number in range(at, end))
            at = end
    return {name: frozenset(share) for name, share in shares.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform, "range": range_}


def _places(topic_ids: Iterable[bytes], topics: Topics) -> list[Place]:
    return [
        (topic_id, number) for topic_id in sorted(topic_ids) for number in range(len(topics[topic_id].racks))
    ]


def _is_near(reader: Reader, place: Place, topics: Topics) -> bool:
    return reader.rack_id is not None and reader.rack_id in topics[place[0]].racks[place[1]]


# --- all read the same ------------------------------------------------------------------------------------------


def _equal_shares(readers: Sequence[Reader], topics: Topics) -> dict[str, Places]:
    """Everybody gets P // M or one more. Whoever has most keeps the larger shares: so the fewest move.

    Sets as wholes, and a look only at those whose shares change: a group of a thousand is assigned anew for each that comes.
    """
    free = set[Place]().union(
        *(_all_of(topic_id, len(topics[topic_id].racks)) for topic_id in readers[0].topics)
    )
    least, extra = divmod(len(free), len(readers))
    settled = _undisputed(readers, free)
    rich = [reader for reader in readers if len(settled[reader.member_id]) > least]
    for reader in sorted(rich, key=lambda each: (-len(settled[each.member_id]), each.member_id)):
        limit = least
        if extra:
            limit, extra = least + 1, extra - 1
        kept = settled[reader.member_id]
        if len(kept) > limit:
            # What is in another rack is given away first.
            near_first = sorted(
                kept, key=lambda place: (not _is_near(reader, place, topics), place)
            )  # used at once
            settled[reader.member_id] = frozenset(near_first[:limit])
    free.difference_update(*settled.values())
    if not free:
        return settled
    poor = least if extra else least - 1
    shares: dict[str, list[Place]] = {name: [] for name, kept in settled.items() if len(kept) <= poor}
    room = {name: least - len(settled[name]) for name in shares}
    left = dict.fromkeys(sorted(free))
    extra = _give_to_near(readers, topics, left, shares, room, extra)
    _deal(left, shares, room, extra)
    for name, share in shares.items():
        if share:
            settled[name] = settled[name].union(share)
    return settled


@lru_cache(maxsize=256)
def _all_of(topic_id: bytes, count: int) -> Places:
    return frozenset((topic_id, number) for number in range(count))


def _undisputed(readers: Sequence[Reader], free: set[Place]) -> dict[str, Places]:
    """What each reader had that is still there, each place once: almost always just what they had."""
    had = {reader.member_id: reader.had for reader in readers}
    together = set[Place]().union(*had.values())
    if len(together) == sum(map(len, had.values())) and together <= free:
        return had
    left = set(free)
    for reader in sorted(readers, key=lambda each: (-len(each.had & free), each.member_id)):
        had[reader.member_id] = kept = reader.had & left
        left -= kept
    return had


def _give_to_near(
    readers: Sequence[Reader], topics: Topics, free: dict[Place, None], shares: Mapping[str, list[Place]],
    room: Mapping[str, int], extra: int,
) -> int:  # fmt: skip
    """Give what has no reader to those in its rack; how many larger shares are left afterwards. `room` is what each may
    be given, beside one more while there are larger shares left."""
    by_rack: dict[str, deque[str]] = {}
    for reader in readers:
        if reader.rack_id is not None and reader.member_id in room:
            by_rack.setdefault(reader.rack_id, deque()).append(reader.member_id)
    if not by_rack:
        return extra
    for place in list(free):
        # First to the rack in which there is most room for it.
        racks = sorted(topics[place[0]].racks[place[1]] & by_rack.keys())
        for rack in sorted(racks, key=lambda rack: -len(by_rack[rack])):
            names = by_rack[rack]
            while names and len(shares[names[0]]) >= room[names[0]] + (extra > 0):
                names.popleft()
            if names:
                share = shares[names[0]]
                extra -= len(share) == room[names[0]]
                share.append(place)
                del free[place]
                names.rotate(-1)
                break
    return extra


def _deal(
    free: Iterable[Place], shares: Mapping[str, list[Place]], room: Mapping[str, int], extra: int
) -> None:
    """Deal out the rest one by one, as cards, so that the partitions of one topic are spread."""
    waiting = deque(sorted(room))
    for place in free:
        while True:
            name = waiting.popleft()
            share = shares[name]
            if len(share) < room[name]:
                waiting.append(name)
                break
            if extra and len(share) == room[name]:
                extra -= 1
                break
        share.append(place)


# --- all read something else ------------------------------------------------------------------------------------


class _FairShares:
    """Members whose subscriptions differ. Everybody keeps what they had; what is left goes to whoever has least; then
    partitions move along chains of members from one that has more to one that has at least two fewer, until there
    is no such chain: no fairer assignment exists then."""

    def __init__(self, readers: Sequence[Reader], topics: Topics) -> None:
        self._topics = topics
        self._readers = {reader.member_id: reader for reader in readers}
        self._shares: dict[str, dict[bytes, set[Place]]] = {name: {} for name in self._readers}
        self._loads = Counter(dict.fromkeys(self._readers, 0))
        self._by_topic: dict[bytes, list[str]] = {}
        #: Topics whose partitions move no more.
        self._settled: set[bytes] = set()
        for reader in readers:
            for topic_id in reader.topics:
                self._by_topic.setdefault(topic_id, []).append(reader.member_id)

    def settle(self) -> dict[str, Places]:
        free = dict.fromkeys(_places(self._by_topic, self._topics))
        for name, reader in self._readers.items():
            for place in reader.had:
                if place in free and place[0] in reader.topics:
                    del free[place]
                    self._give(place, name)
        for place in sorted(free, key=lambda place: (len(self._by_topic[place[0]]), place)):
            self._give(place, self._neediest(place))
        self._balance()
        return {
            name: frozenset(place for places in share.values() for place in places)
            for name, share in self._shares.items()
        }

    def _give(self, place: Place, name: str) -> None:
        self._shares[name].setdefault(place[0], set()).add(place)
        self._loads[name] += 1

    def _neediest(self, place: Place) -> str:
        return min(
            self._by_topic[place[0]],
            key=lambda name: (
                self._loads[name],
                not _is_near(self._readers[name], place, self._topics),
                name,
            ),
        )

    def _balance(self) -> None:
        rich = set(self._readers)
        while rich:
            source = max(rich, key=lambda name: (self._loads[name], name))
            for giver, topic_id, taker in self._chain(source, rich):
                self._move(giver, topic_id, taker)

    def _chain(self, source: str, rich: set[str]) -> list[tuple[str, bytes, str]]:
        """The shortest chain of moves that takes one from `source`, who has most, and gives it to somebody with two fewer.

        If there is none, everybody whom a chain from here comes to has one fewer at least: nobody gives or takes there any
        more, and neither they nor what they read are looked at again.
        """
        enough = self._loads[source] - 2
        came: dict[str, tuple[str, bytes]] = {}
        seen_topics: set[bytes] = set()
        queue = deque([source])
        while queue:
            giver = queue.popleft()
            for topic_id, places in self._shares[giver].items():
                if not places or topic_id in seen_topics or topic_id in self._settled:
                    continue
                seen_topics.add(topic_id)
                for taker in self._by_topic[topic_id]:
                    if taker != source and taker not in came:
                        came[taker] = (giver, topic_id)
                        queue.append(taker)
                poorest = min(self._by_topic[topic_id], key=lambda name: (self._loads[name], name))
                if self._loads[poorest] <= enough:
                    return self._moves(came, source, poorest)
        self._settled |= seen_topics
        rich.discard(source)
        rich.difference_update(came)
        return []

    @staticmethod
    def _moves(
        came: Mapping[str, tuple[str, bytes]], source: str, taker: str
    ) -> list[tuple[str, bytes, str]]:
        moves = []
        while taker != source:
            giver, topic_id = came[taker]
            moves.append((giver, topic_id, taker))
            taker = giver
        return moves

    def _move(self, giver: str, topic_id: bytes, taker: str) -> None:
        places = self._shares[giver][topic_id]
        had, reader = self._readers[giver].had, self._readers[taker]
        place = min(
            places,
            key=lambda place: (
                place not in reader.had,
                place in had,
                not _is_near(reader, place, self._topics),
                place,
            ),
        )
        places.discard(place)
        self._loads[giver] -= 1
        self._give(place, taker)
