"""Reassignment plans that copy as few replicas as possible.

Pure functions of the brokers (with their racks) and the current assignments. Each returns the new replicas of
the partitions that change, the preferred leader first. The command line computes a plan and sends it with
AlterPartitionReassignments.

Every plan satisfies:

- A partition's replicas are on different brokers, and in no fewer racks than before.
- A new replica takes the list position of the old one. Only the order changes to spread preferred leaders,
  which copies nothing.

`balance` ends with brokers that differ by at most one replica, unless racks forbid it, and with the fewest
copies: each goes from a broker with the most replicas to one with the fewest. A broker with at least two
replicas more always has one that the other lacks; only racks can require a detour over a third broker.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, pairwise
from typing import Final, NamedTuple, TypeAlias


class Place(NamedTuple):
    topic: str
    partition: int


Racks: TypeAlias = Mapping[int, str | None]
Assignments: TypeAlias = Mapping[Place, Sequence[int]]
Plan: TypeAlias = dict[Place, tuple[int, ...]]

#: Candidates compared for a move, to find the topic with the most replicas on the broker.
_CANDIDATES: Final = 32


class CannotPlan(ValueError):
    """No such assignment exists; the text says why."""


def balance(brokers: Racks, assignments: Assignments) -> Plan:
    """Spread replicas and preferred leaders evenly over these brokers; other brokers are emptied."""
    layout = _Layout(brokers, assignments)
    layout.vacate(node for node in _nodes(assignments) if node not in brokers)
    layout.level(lambda place, node: node in layout.copied[place])
    layout.level(lambda _place, _node: True)
    layout.spread_leaders()
    return layout.plan()


def drain(brokers: Racks, assignments: Assignments, leaving: int) -> Plan:
    """Move all replicas of one broker to the others; other replicas stay."""
    layout = _Layout({node: rack for node, rack in brokers.items() if node != leaving}, assignments)
    layout.vacate([leaving])
    layout.level(lambda place, node: node in layout.copied[place])
    return layout.plan()


def change_factor(brokers: Racks, assignments: Assignments, factor: int) -> Plan:
    """Change the replication factor: add replicas to the emptiest brokers, remove from the fullest."""
    if factor < 1:
        raise CannotPlan("the replication factor must be at least 1")
    layout = _Layout(brokers, assignments)
    for place, replicas in layout.replicas.items():
        while len(replicas) > factor:
            layout.shrink(place)
        while len(replicas) < factor:
            layout.grow(place)
    layout.level(lambda place, node: node in layout.copied[place])
    return layout.plan()


def copies(before: Assignments, plan: Mapping[Place, Sequence[int]]) -> int:
    """How many replicas a plan copies."""
    return sum(len(set(replicas) - set(before.get(place, ()))) for place, replicas in plan.items())


def _nodes(assignments: Assignments) -> list[int]:
    return sorted({node for replicas in assignments.values() for node in replicas})


class _Layout:
    """The assignments while a plan is computed."""

    def __init__(self, brokers: Racks, assignments: Assignments) -> None:
        if not brokers:
            raise CannotPlan("there is no broker to hold anything")
        self.racks = dict(brokers)
        self.before = {place: tuple(replicas) for place, replicas in assignments.items()}
        self.replicas = {place: list(replicas) for place, replicas in assignments.items()}
        #: The partitions on each broker. Dicts keep their order, so that plans are deterministic.
        self.on: dict[int, dict[Place, None]] = {node: {} for node in sorted(brokers)}
        self.by_topic: Counter[tuple[int, str]] = Counter()
        #: Replicas that the plan copies already: moving one again copies nothing more.
        self.copied: dict[Place, set[int]] = {place: set() for place in self.replicas}
        for place, replicas in self.replicas.items():
            for node in replicas:
                self.on.setdefault(node, {})[place] = None
                self.by_topic[node, place.topic] += 1

    # --- single steps ---------------------------------------------------------------------------------------

    def move(self, place: Place, source: int, target: int) -> None:
        replicas = self.replicas[place]
        replicas[replicas.index(source)] = target
        self._left(place, source)
        self._came(place, target)

    def grow(self, place: Place) -> None:
        target = self.room_for(place, self.replicas[place])
        if target is None:
            raise CannotPlan(
                f"{place.topic}-{place.partition} cannot have {len(self.replicas[place]) + 1} replicas: "
                f"there are {len(self.racks)} brokers"
            )
        self.replicas[place].append(target)
        self._came(place, target)

    def shrink(self, place: Place) -> None:
        """Remove a replica: not the preferred leader, and rather one whose rack has another."""
        replicas = self.replicas[place]
        shared = Counter(self.rack(node) for node in replicas)
        going = max(
            replicas[1:],
            key=lambda node: (node not in self.racks, shared[self.rack(node)] > 1, len(self.on[node]), node),
        )
        replicas.remove(going)
        self._left(place, going)

    def _came(self, place: Place, node: int) -> None:
        self.on[node][place] = None
        self.by_topic[node, place.topic] += 1
        if node not in self.before[place]:
            self.copied[place].add(node)

    def _left(self, place: Place, node: int) -> None:
        del self.on[node][place]
        self.by_topic[node, place.topic] -= 1
        self.copied[place].discard(node)

    # --- racks ----------------------------------------------------------------------------------------------

    def rack(self, node: int) -> str:
        """The rack of a broker; brokers without a rack, and missing ones, share the empty rack."""
        return self.racks.get(node) or ""

    def keeps_racks(self, place: Place, source: int, target: int) -> bool:
        """Whether the partition is in as many racks after a move."""
        replicas = self.replicas[place]
        rest = [self.rack(node) for node in replicas if node != source]
        return self.rack(target) not in rest or self.rack(source) in rest

    def room_for(self, place: Place, beside: Sequence[int]) -> int | None:
        """The broker for a new replica: in a rack without one, then the emptiest."""
        taken = {self.rack(node) for node in beside}
        return min(
            (node for node in self.racks if node not in self.replicas[place]),
            key=lambda node: (
                self.rack(node) in taken,
                len(self.on[node]),
                self.by_topic[node, place.topic],
                node,
            ),
            default=None,
        )

    # --- whole passes ---------------------------------------------------------------------------------------

    def vacate(self, leaving: Iterable[int]) -> None:
        """Move all replicas away from these brokers."""
        for node in leaving:
            for place in list(self.on.get(node, ())):
                beside = [other for other in self.replicas[place] if other != node]
                target = self.room_for(place, beside)
                if target is None:
                    raise CannotPlan(
                        f"{place.topic}-{place.partition} has {len(self.replicas[place])} replicas and only "
                        f"{len(self.racks)} brokers are left: broker {node} cannot be emptied"
                    )
                self.move(place, node, target)

    def level(self, may_move: Callable[[Place, int], bool]) -> None:
        """Move replicas from the fullest brokers to the emptiest, until they differ by one at most.

        A source without a possible move to an emptier broker stays as it is.
        """
        stuck: set[int] = set()
        while True:
            sources = [node for node in self.racks if node not in stuck]
            if not sources:
                return
            source = max(sources, key=lambda node: (len(self.on[node]), -node))
            path = self._path(source, may_move)
            if path is None:
                stuck.add(source)
                continue
            if not self._follow(path, may_move):
                stuck.add(source)
            elif len(path) > 2:
                # A detour changes the possible moves of its brokers.
                stuck.clear()

    def _path(self, source: int, may_move: Callable[[Place, int], bool]) -> list[int] | None:
        """The shortest chain of moves from a broker to one with at least two replicas less."""
        came_from: dict[int, int] = {source: source}
        line = deque([source])
        full = len(self.on[source])
        while line:
            node = line.popleft()
            for target in sorted(self.racks, key=lambda each: (len(self.on[each]), each)):
                if target in came_from or self._candidate(node, target, may_move) is None:
                    continue
                came_from[target] = node
                if len(self.on[target]) <= full - 2:
                    path = [target]
                    while path[-1] != source:
                        path.append(came_from[path[-1]])
                    return path[::-1]
                line.append(target)
        return None

    def _follow(self, path: list[int], may_move: Callable[[Place, int], bool]) -> bool:
        """Make the moves of a chain, last first. If one became impossible, all are undone."""
        done: list[tuple[Place, int, int]] = []
        for source, target in reversed(list(pairwise(path))):
            place = self._candidate(source, target, may_move)
            if place is None:
                for moved, back, away in reversed(done):
                    self.move(moved, away, back)
                return False
            self.move(place, source, target)
            done.append((place, source, target))
        return True

    def _candidate(self, source: int, target: int, may_move: Callable[[Place, int], bool]) -> Place | None:
        """A partition that can move from one broker to another, preferably of a crowded topic."""
        held = self.on[target]
        able = (
            place
            for place in self.on[source]
            if place not in held and may_move(place, source) and self.keeps_racks(place, source, target)
        )
        return max(
            islice(able, _CANDIDATES),
            # One that was moved already costs nothing more.
            key=lambda place: (
                source in self.copied[place],
                self.by_topic[source, place.topic] - self.by_topic[target, place.topic],
            ),
            default=None,
        )

    def spread_leaders(self) -> None:
        """Reorder replicas until no broker leads two more than another that could take one over."""
        led: dict[int, dict[Place, None]] = {node: {} for node in self.racks}
        for place, replicas in self.replicas.items():
            if replicas:
                led[replicas[0]][place] = None
        stuck: set[int] = set()
        while len(stuck) < len(led):
            source = max(
                (node for node in led if node not in stuck), key=lambda node: (len(led[node]), -node)
            )
            chain = self._leader_chain(source, led)
            if chain is None:
                stuck.add(source)
                continue
            for place, node in chain:
                replicas = self.replicas[place]
                del led[replicas[0]][place]
                at = replicas.index(node)
                replicas[0], replicas[at] = node, replicas[0]
                led[node][place] = None
            stuck.clear()

    def _leader_chain(
        self, source: int, led: Mapping[int, Mapping[Place, None]]
    ) -> list[tuple[Place, int]] | None:
        """A chain of leader changes that ends at a broker which leads at least two less."""
        came_by: dict[int, tuple[Place, int] | None] = {source: None}
        line = deque([source])
        while line:
            node = line.popleft()
            for place in led[node]:
                for target in self.replicas[place][1:]:
                    if target in came_by or target not in led:
                        continue
                    came_by[target] = (place, node)
                    if len(led[target]) <= len(led[source]) - 2:
                        return _chain(target, came_by)
                    line.append(target)
                if len(came_by) == len(led):
                    # Every broker is reached: there is no other chain.
                    break
        return None

    def plan(self) -> Plan:
        return {
            place: tuple(replicas)
            for place, replicas in self.replicas.items()
            if tuple(replicas) != self.before[place]
        }


def _chain(target: int, came_by: Mapping[int, tuple[Place, int] | None]) -> list[tuple[Place, int]]:
    chain = []
    node = target
    while (step := came_by[node]) is not None:
        place, before = step
        chain.append((place, node))
        node = before
    return chain
