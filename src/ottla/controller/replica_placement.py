"""Replica placement of new partitions (E9): random start, round robin, followers shifted, racks spread.

    brokers 0 1 2 3, start 0:   0 1 2 · 1 2 3 · 2 3 0 · 3 0 1 · then the followers one further: 0 2 3 · 1 3 0 · …

If every broker has a rack, brokers are ordered with alternating racks. A replica then skips brokers of a rack
that has a replica already, while another rack has none. Fenced and stopping brokers get replicas only if
there are too few others, and only as many as are missing. So each partition has a replica that can lead.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.metadata import records as r
from ottla.metadata.image import Image
from ottla.model.errors import ErrorCode, Refusal
from ottla.ports.entropy import Entropy


def spread(image: Image, entropy: Entropy, *, partitions: int, factor: int, first: int) -> list[list[int]]:
    """The replicas of each partition, the preferred leader first. `first`: the number of the first
    partition."""
    nodes = _chosen(image, entropy, factor)
    line = _in_line(nodes)
    racks = {node.node_id: node.rack for node in nodes}
    rack_count = len(set(racks.values())) if None not in racks.values() else 0
    count = len(line)
    start = entropy.below(count)
    shift = entropy.below(count)
    placed = []
    for number in range(first, first + partitions):
        leader = (start + number) % count
        turn = shift + number // count
        if rack_count > 1:
            placed.append(_apart(line, racks, leader, turn * rack_count, factor, rack_count))
        else:
            placed.append(
                [line[leader], *(line[_follower(leader, turn + n, count)] for n in range(factor - 1))]
            )
    return placed


def check_replicas(image: Image, replicas: Sequence[int]) -> None:
    """Refuse an invalid manual assignment."""
    if not replicas:
        raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a partition needs at least one replica")
    if len(set(replicas)) != len(replicas):
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the replicas of a partition must be on different brokers"
        )
    for node in replicas:
        if node not in image.brokers:
            raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"no broker has the id {node}")


def _chosen(image: Image, entropy: Entropy, factor: int) -> list[r.BrokerRegistration]:
    """The brokers that get replicas, by id."""
    if factor < 1:
        raise Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, "the replication factor must be at least 1")
    if factor > len(image.brokers):
        raise Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {factor} needs {factor} brokers; {len(image.brokers)} are registered",
        )
    live = [node for node in sorted(image.brokers) if image.is_live(node)]
    if not live:
        raise Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, "no broker is live")
    missing = factor - len(live)
    if missing > 0:
        others = [node for node in sorted(image.brokers) if node not in live]
        at = entropy.below(len(others))
        live += (others[at:] + others[:at])[:missing]
    return [image.brokers[node] for node in sorted(live)]


def _in_line(nodes: Sequence[r.BrokerRegistration]) -> list[int]:
    """Brokers by id; with racks, the racks alternate."""
    by_rack: dict[str, list[int]] = {}
    for node in nodes:
        if node.rack is None:
            return [each.node_id for each in nodes]
        by_rack.setdefault(node.rack, []).append(node.node_id)
    waiting = [by_rack[rack] for rack in sorted(by_rack)]
    line = []
    while waiting:
        line += [each.pop(0) for each in waiting]
        waiting = [each for each in waiting if each]
    return line


def _follower(leader: int, shift: int, count: int) -> int:
    """The index of a follower: any but the leader's, one further with each shift."""
    return (leader + 1 + shift % (count - 1)) % count


def _apart(
    line: Sequence[int], racks: dict[int, str | None], leader: int, shift: int, factor: int, rack_count: int
) -> list[int]:
    chosen = [line[leader]]
    used = {racks[line[leader]]}
    step = 0
    while len(chosen) < factor:
        node = line[_follower(leader, shift + step, len(line))]
        step += 1
        if node in chosen or (racks[node] in used and len(used) < rack_count):
            continue
        chosen.append(node)
        used.add(racks[node])
    return chosen
