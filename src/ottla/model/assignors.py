"""Assignors: the broker's for consumer groups (KIP-848), and the client's sticky ones.

Pure functions from members with their previous assignment to their next assignment. Every partition of a
subscribed topic goes to exactly one of its subscribers.

- `uniform`, the default: shares are as even as the subscriptions allow, and as few partitions as possible
  move. If racks are known, a partition that needs a new member gets one in the rack of a replica, if the
  shares allow it. Nothing moves only to be in the right rack.
- `range`: topic by topic, each member gets a range of partition numbers in the order of member ids. So the
  same numbers of several topics go to the same member. Racks are ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, NamedTuple, Protocol, TypeAlias

from ottla.model.steps import Steps, run


class Racks(Protocol):
    """A topic as assignors see it."""

    @property
    def racks(self) -> Sequence[frozenset[str]]:
        """By partition number: the racks of its replicas, as far as they are known."""


#: (topic id, number). The client uses topic names as ids.
Place: TypeAlias = tuple[bytes, int]
Places: TypeAlias = frozenset[Place]
Topics: TypeAlias = Mapping[bytes, Racks]

NOTHING: Final[Places] = frozenset()
#: Partitions per step.
_YIELD_EVERY: Final = 2000
#: With more members, a heap has the member with the smallest load; with fewer, it is searched.
_FEW: Final = 32
#: Maximum cost of the search for fairer shares: some seconds. Groups of very many members with different
#: subscriptions get the result so far.
_BALANCE_COST_MAX: Final = 500_000


class Reader(NamedTuple):
    """A member as an assignor sees it. `topics`: ids of existing topics; `had`: its last target."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    topics: frozenset[bytes]
    had: Places = NOTHING


Assignor: TypeAlias = Callable[[Sequence[Reader], Topics], Steps[dict[str, Places]]]


def uniform(readers: Sequence[Reader], topics: Topics) -> dict[str, Places]:
    return run(_uniform(readers, topics))


def range_(readers: Sequence[Reader], topics: Topics) -> dict[str, Places]:
    return run(_range(readers, topics))


def _uniform(readers: Sequence[Reader], topics: Topics) -> Steps[dict[str, Places]]:
    if not readers:
        return {}
    first = readers[0].topics
    if all(reader.topics is first or reader.topics == first for reader in readers):
        return (yield from _equal_shares(readers, topics))
    return (yield from _FairShares(readers, topics).settle())


def _range(readers: Sequence[Reader], topics: Topics) -> Steps[dict[str, Places]]:
    shares: dict[str, list[Place]] = {reader.member_id: [] for reader in readers}
    in_order = sorted(readers, key=lambda reader: reader.instance_id or reader.member_id)
    kinds = yield from _kinds(in_order)
    position = {reader.member_id: at for at, reader in enumerate(in_order)}
    for kind in set(kinds.values()):
        kind.readers.sort(key=position.__getitem__)
        yield len(kind.readers)
    for topic_id, kind in kinds.items():
        count = len(topics[topic_id].racks)
        least, extra = divmod(count, len(kind.readers))
        at = 0
        for place, name in enumerate(kind.readers):
            if at == count:
                break
            end = at + least + (place < extra)
            shares[name] += [(topic_id, number) for number in range(at, end)]
            at = end
        yield count + 1
    return {name: frozenset(share) for name, share in shares.items()}


#: By name. Each is a computation in steps (`model/steps.py`): very many partitions take seconds.
ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": _uniform, "range": _range}


def numbers_by_topic(places: Iterable[Place]) -> Steps[dict[bytes, list[int]]]:
    by_topic: dict[bytes, list[int]] = {}
    for at, (topic_id, number) in enumerate(places, 1):
        numbers = by_topic.get(topic_id)
        if numbers is None:
            by_topic[topic_id] = [number]
        else:
            numbers.append(number)
        if not at % _YIELD_EVERY:
            yield _YIELD_EVERY // 8
    return by_topic


def _in_order(places: Iterable[Place]) -> Steps[list[Place]]:
    """Sorted, in steps."""
    by_topic = yield from numbers_by_topic(places)
    found: list[Place] = []
    for at, topic_id in enumerate(sorted(by_topic)):
        found += [(topic_id, number) for number in sorted(by_topic[topic_id])]
        if not at % 500:
            yield 250
    return found


def _is_near(reader: Reader, place: Place, topics: Topics) -> bool:
    return reader.rack_id is not None and reader.rack_id in topics[place[0]].racks[place[1]]


# --- all read the same ------------------------------------------------------------------------------------------


def _equal_shares(readers: Sequence[Reader], topics: Topics) -> Steps[dict[str, Places]]:
    """Every member gets P // M partitions or one more. The members with most partitions keep the larger
    shares, so that the fewest move.

    It works on whole sets, and visits only members whose share changes: a group of a thousand members is
    assigned again for each one that joins.
    """
    free = set[Place]()
    for at, topic_id in enumerate(readers[0].topics):
        free.update(_all_of(topic_id, len(topics[topic_id].racks)))
        if not at % 500:
            yield 250
    least, extra = divmod(len(free), len(readers))
    settled = _undisputed(readers, free)
    yield len(free) // 20
    rich = [reader for reader in readers if len(settled[reader.member_id]) > least]
    for reader in sorted(rich, key=lambda each: (-len(settled[each.member_id]), each.member_id)):
        limit = least
        if extra:
            limit, extra = least + 1, extra - 1
        kept = settled[reader.member_id]
        if len(kept) > limit:
            # Partitions without a replica in the member's rack are given away first.
            near_first = yield from _in_order(kept)
            if reader.rack_id is not None:
                near_first.sort(key=lambda place: not _is_near(reader, place, topics))  # used at once
            settled[reader.member_id] = frozenset(near_first[:limit])
            yield len(near_first) // 10
    free.difference_update(*settled.values())
    yield len(free) // 20
    if not free:
        return settled
    if len(readers) == 1:
        [name] = settled
        return {name: settled[name].union(free)}
    poor = least if extra else least - 1
    shares: dict[str, list[Place]] = {name: [] for name, kept in settled.items() if len(kept) <= poor}
    room = {name: least - len(settled[name]) for name in shares}
    left = dict.fromkeys((yield from _in_order(free)))
    extra = yield from _give_to_near(readers, topics, left, shares, room, extra)
    yield from _deal(left, shares, room, extra)
    for name, share in shares.items():
        if share:
            settled[name] = settled[name].union(share)
            yield len(share) // 20
    return settled


@lru_cache(maxsize=256)
def _all_of(topic_id: bytes, count: int) -> Places:
    return frozenset((topic_id, number) for number in range(count))


def _undisputed(readers: Sequence[Reader], free: set[Place]) -> dict[str, Places]:
    """The previous partitions of each member that still exist, each partition once. Almost always unchanged."""
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
) -> Steps[int]:  # fmt: skip
    """Give unassigned partitions to members in their rack; returns how many larger shares are left. `room` is
    the free share of each member, without the one more of larger shares.
    """
    by_rack: dict[str, deque[str]] = {}
    for reader in readers:
        if reader.rack_id is not None and reader.member_id in room:
            by_rack.setdefault(reader.rack_id, deque()).append(reader.member_id)
    if not by_rack:
        return extra
    for at, place in enumerate(list(free)):
        # First to the rack with the largest free share.
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
        if not at % 250:
            yield 250
    return extra


def _deal(
    free: Iterable[Place], shares: Mapping[str, list[Place]], room: Mapping[str, int], extra: int
) -> Steps[None]:
    """Deal out the rest one by one, so that the partitions of a topic are spread."""
    waiting = deque(sorted(room))
    for at, place in enumerate(free):
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
        if not at % _YIELD_EVERY:
            yield _YIELD_EVERY // 8


# --- all read something else ------------------------------------------------------------------------------------


class _Kind:
    """Topics with the same subscribers: for their shares it does not matter which of these topics moves."""

    __slots__ = ("by_rack", "poorest", "readers")

    def __init__(self, readers: list[str]) -> None:
        self.readers = readers
        #: A heap of (load, member). Stale loads are corrected when they reach the top.
        self.poorest: list[tuple[int, str]] = []
        #: The same for the members of each rack.
        self.by_rack: dict[str, list[tuple[int, str]]] = {}


def _kinds(readers: Sequence[Reader]) -> Steps[dict[bytes, _Kind]]:
    """The subscribed topics, in order, each with its kind. Most members have the same subscription, which is
    read once.
    """
    names: dict[frozenset[bytes], list[str]] = {}
    for reader in readers:
        names.setdefault(reader.topics, []).append(reader.member_id)
    yield len(readers)
    by_topic: dict[bytes, list[int]] = {}
    for number, topic_ids in enumerate(names):
        for topic_id in topic_ids:
            by_topic.setdefault(topic_id, []).append(number)
        yield len(topic_ids) // 8
    by_number = list(names.values())
    kinds: dict[tuple[int, ...], _Kind] = {}
    found: dict[bytes, _Kind] = {}
    for at, topic_id in enumerate(sorted(by_topic)):
        numbers = tuple(by_topic[topic_id])
        kind = kinds.get(numbers)
        if kind is None:
            kind = kinds[numbers] = _Kind([name for each in numbers for name in by_number[each]])
            yield len(kind.readers) // 8
        found[topic_id] = kind
        if not at % 500:
            yield 250
    return found


class _FairShares:
    """For members with different subscriptions. Members keep their partitions, and the rest goes to the
    member with the smallest load. Then partitions move along chains of members, from one member to another
    with at least two fewer. Without such a chain no fairer assignment exists.
    """

    def __init__(self, readers: Sequence[Reader], topics: Topics) -> None:
        self._topics = topics
        self._readers = {reader.member_id: reader for reader in readers}
        #: Partitions of each member, by kind of topic and topic. Without empty entries.
        self._shares: dict[str, dict[_Kind, dict[bytes, set[Place]]]] = {name: {} for name in self._readers}
        self._loads = dict.fromkeys(self._readers, 0)
        self._kinds: dict[bytes, _Kind] = {}
        self._kinds_of: dict[frozenset[bytes], list[_Kind]] = {}
        #: Kinds whose partitions do not move any more.
        self._settled: set[_Kind] = set()

    def settle(self) -> Steps[dict[str, Places]]:
        self._kinds = yield from _kinds(list(self._readers.values()))
        free: dict[Place, None] = {}
        for at, topic_id in enumerate(self._kinds):
            for number in range(len(self._topics[topic_id].racks)):
                free[topic_id, number] = None
            if not at % 500:
                yield 250
        for name, reader in self._readers.items():
            for at, place in enumerate(reader.had):
                if place in free and place[0] in reader.topics:
                    del free[place]
                    self._give(place, name)
                if not at % _YIELD_EVERY:
                    yield _YIELD_EVERY // 4
        # First the topics with the fewest subscribers.
        by_count: dict[int, list[Place]] = {}
        for at, place in enumerate(free):
            by_count.setdefault(len(self._kinds[place[0]].readers), []).append(place)
            if not at % _YIELD_EVERY:
                yield _YIELD_EVERY // 8
        for kind in dict.fromkeys(self._kinds.values()):
            self._count(kind)
            yield len(kind.readers) // 4
        for count in sorted(by_count):
            for at, place in enumerate(by_count[count]):
                self._give(place, self._neediest(place))
                if not at % 250:
                    yield 250
        yield from self._balance()
        settled: dict[str, Places] = {}
        for name, share in self._shares.items():
            settled[name] = frozenset(
                place for by_topic in share.values() for places in by_topic.values() for place in places
            )
            yield len(settled[name]) // 8
        return settled

    def _give(self, place: Place, name: str) -> None:
        by_topic = self._shares[name].setdefault(self._kinds[place[0]], {})
        by_topic.setdefault(place[0], set()).add(place)
        self._loads[name] += 1

    def _count(self, kind: _Kind) -> None:
        if len(kind.readers) <= _FEW:
            return
        kind.poorest = [(self._loads[name], name) for name in kind.readers]
        heapify(kind.poorest)
        for entry in kind.poorest:
            rack_id = self._readers[entry[1]].rack_id
            if rack_id is not None:
                kind.by_rack.setdefault(rack_id, []).append(entry)
        for heap in kind.by_rack.values():
            heapify(heap)

    def _top(self, heap: list[tuple[int, str]]) -> tuple[int, str]:
        """The member with the smallest load. Loads that grew are corrected here; a load that shrinks is
        pushed.
        """
        while True:
            load, name = heap[0]
            if load == self._loads[name]:
                return heap[0]
            heapreplace(heap, (self._loads[name], name))

    def _poorest(self, kind: _Kind) -> tuple[int, str]:
        if len(kind.readers) <= _FEW:
            return min((self._loads[name], name) for name in kind.readers)
        return self._top(kind.poorest)

    def _neediest(self, place: Place) -> str:
        kind = self._kinds[place[0]]
        if len(kind.readers) <= _FEW:
            return min(
                kind.readers,
                key=lambda name: (
                    self._loads[name],
                    not _is_near(self._readers[name], place, self._topics),
                    name,
                ),
            )
        load, name = self._top(kind.poorest)
        if not kind.by_rack:
            return name
        best = load, not _is_near(self._readers[name], place, self._topics), name
        for rack in self._topics[place[0]].racks[place[1]]:
            if rack in kind.by_rack:
                load, name = self._top(kind.by_rack[rack])
                best = min(best, (load, False, name))
        return best[2]

    def _balance(self) -> Steps[None]:
        rich = set(self._readers)
        ranks = {name: rank for rank, name in enumerate(sorted(self._readers, reverse=True))}
        names = list(ranks)
        for reader in self._readers.values():
            if reader.topics not in self._kinds_of:
                kinds = dict.fromkeys(self._kinds[topic_id] for topic_id in reader.topics)
                self._kinds_of[reader.topics] = [kind for kind in kinds if len(kind.readers) > _FEW]
                yield len(reader.topics) // 8
        #: A heap of (-load, rank), corrected as those of the kinds are.
        richest = [(-self._loads[name], rank) for name, rank in ranks.items()]
        heapify(richest)
        left = _BALANCE_COST_MAX
        while rich and left > 0:
            load, rank = richest[0]
            source = names[rank]
            if source not in rich:
                heappop(richest)
                continue
            if -load != self._loads[source]:
                heapreplace(richest, (-self._loads[source], rank))
                continue
            moves, cost = yield from self._chain(source, rich)
            for giver, kind, taker in moves:
                self._move(giver, kind, taker)
            if moves:
                taker = moves[0][2]
                heappush(richest, (-self._loads[taker], ranks[taker]))
                kinds_of = self._kinds_of[self._readers[source].topics]
                for kind in kinds_of:
                    heappush(kind.poorest, (self._loads[source], source))
                cost += len(kinds_of) // 4
            cost += 1 + len(moves)
            left -= cost
            yield cost

    def _chain(self, source: str, rich: set[str]) -> Steps[tuple[list[tuple[str, _Kind, str]], int]]:
        """The shortest chain of moves that takes one partition from `source`, which has most, and gives one
        to a member with at least two fewer; and the cost of the search.

        Without such a chain, all members that are reachable from here have at most one fewer. None of them
        gives or takes any more, and neither they nor their topics are visited again.
        """
        enough = self._loads[source] - 2
        came: dict[str, tuple[str, _Kind]] = {}
        seen: set[_Kind] = set()
        queue = deque([source])
        cost = yielded = 0
        while queue:
            giver = queue.popleft()
            for kind in self._shares[giver]:
                cost += 1
                if cost > yielded + _YIELD_EVERY:
                    yield (cost - yielded) // 8
                    yielded = cost
                if kind in seen or kind in self._settled:
                    continue
                seen.add(kind)
                load, poorest = self._poorest(kind)
                if load <= enough:
                    came.setdefault(poorest, (giver, kind))
                    return self._moves(came, source, poorest), cost // 8
                cost += 2 * len(kind.readers)
                for taker in kind.readers:
                    if taker != source and taker not in came:
                        came[taker] = (giver, kind)
                        queue.append(taker)
        self._settled |= seen
        rich.discard(source)
        rich.difference_update(came)
        return [], cost // 8

    @staticmethod
    def _moves(
        came: Mapping[str, tuple[str, _Kind]], source: str, taker: str
    ) -> list[tuple[str, _Kind, str]]:
        moves = []
        while taker != source:
            giver, kind = came[taker]
            moves.append((giver, kind, taker))
            taker = giver
        return moves

    def _move(self, giver: str, kind: _Kind, taker: str) -> None:
        by_topic = self._shares[giver][kind]
        topic_id, places = next(iter(by_topic.items()))
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
        if not places:
            del by_topic[topic_id]
        if not by_topic:
            del self._shares[giver][kind]
        self._loads[giver] -= 1
        self._give(place, taker)
