"""Partition reassignment: begin, replace, cancel, list and complete (KIP-455).

During a reassignment, `replicas` are the target replicas in target order, followed by the ones to remove.
`adding` names the new ones. The start takes no member out of the ISR. It completes when all added replicas
are in sync: then the removed ones leave. Completion waits for another member if it would shrink the ISR below
`min.insync.replicas`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.controller.leader_election import Live, Rules, as_one, min_isr_of, settle
from ottla.controller.replica_placement import check_replicas
from ottla.metadata import records as r
from ottla.metadata.image import Image
from ottla.model.errors import ErrorCode, Refusal


def is_running(partition: r.Partition) -> bool:
    return bool(partition.adding or partition.removing)


def target_of(partition: r.Partition) -> tuple[int, ...]:
    """The replicas after the reassignment."""
    return tuple(node for node in partition.replicas if node not in partition.removing)


def reassign(
    image: Image,
    rules: Rules,
    old: r.Partition,
    target: Sequence[int],
    *,
    may_change_factor: bool = True,
) -> r.Partition:
    """Begin a reassignment, or replace the running one. `old` itself if it has the target already."""
    check_replicas(image, target)
    if not may_change_factor and len(target) != len(target_of(old)):
        raise Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"the replication factor would change from {len(target_of(old))} to {len(target)}",
        )
    before = [node for node in old.replicas if node not in old.adding]
    wanted = tuple(target)
    # A replica of the replaced target goes at once, unless it has all committed records already.
    kept = {*before, *old.isr, *old.eligible}
    removing = tuple(node for node in old.replicas if node not in wanted and node in kept)
    adding = tuple(node for node in wanted if node not in before)
    begun = settle(
        old, rules, image.is_live, isr=old.isr, replicas=wanted + removing, adding=adding, removing=removing
    )
    return as_one(old, complete(begun, rules, image.is_live))


def cancel(image: Image, rules: Rules, old: r.Partition) -> r.Partition:
    """Restore the replicas before the reassignment; the added ones are removed."""
    if not is_running(old):
        raise Refusal(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "no reassignment of this partition is in progress"
        )
    replicas = tuple(node for node in old.replicas if node not in old.adding)
    new = settle(
        old, rules, image.is_live, isr=[node for node in old.isr if node in replicas], replicas=replicas
    )
    if not new.isr and not new.eligible:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "only the added replicas are in sync: without them an unclean leader election would be needed",
        )
    return new


def complete(old: r.Partition, rules: Rules, live: Live) -> r.Partition:
    """The partition after its reassignment, if all added replicas are in sync; otherwise unchanged."""
    if not is_running(old):
        return old
    target = target_of(old)
    isr = [node for node in target if node in old.isr]
    enough = min(min_isr_of(rules, target), len(old.isr))
    if not set(old.adding) <= set(isr) or len(isr) < enough or not any(map(live, isr)):
        return old
    return as_one(old, settle(old, rules, live, isr=isr, replicas=target))


def running(image: Image) -> list[tuple[str, r.Partition]]:
    """(topic, partition) of all running reassignments."""
    return [
        (topic.name, partition)
        for topic in image.topics.values()
        for partition in topic.partitions
        if is_running(partition)
    ]
