"""Reassignment plans of `ottla partition`: partitions with their new replicas, without unchanged ones.

`controller/reassignment_plan.py` makes the plans. This module gives it the brokers and replicas of the
cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.cli.outcome import NOT_FOUND, CommandError, usage_error
from ottla.cli.reassignment import Replicas, read_plan, refuse_if_moving

if TYPE_CHECKING:
    from ottla.client.admin.sync import Admin
    from ottla.client.metadata import TopicPartition


def named(topic: str, partition: int) -> TopicPartition:
    from ottla.client.metadata import TopicPartition

    return TopicPartition(topic, partition)


def ids(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes))


def assignments_of(admin: Admin) -> dict[TopicPartition, tuple[int, ...]]:
    return {
        named(name, part.partition): tuple(part.replicas)
        for name, topic in admin.list_topics(internal=True).items()
        for part in topic.partitions.values()
    }


def to_places(assignments: Replicas) -> Any:
    from ottla.controller.reassignment_plan import Place

    return {Place(*tp): tuple(replicas) for tp, replicas in assignments.items()}


def from_places(plan: Mapping[Any, Sequence[int]]) -> dict[TopicPartition, tuple[int, ...]]:
    return {named(*place): tuple(replicas) for place, replicas in plan.items()}


def wanted(
    admin: Admin,
    before: Replicas,
    topic: str | None,
    partition: int | None,
    to: str | None,
    replication_factor: int | None,
    file: Path | None,
) -> Replicas:
    """The requested replicas, without unchanged partitions."""
    from ottla.controller import reassignment_plan

    if file is not None:
        return _changed(before, read_plan(file))
    live = {node.id: node.rack for node in admin.describe_cluster().nodes}
    mine: Replicas = before
    if topic is not None:
        admin.describe_topics([topic])
        mine = {
            tp: replicas
            for tp, replicas in before.items()
            if tp.topic == topic and partition in (None, tp.partition)
        }
        if not mine:
            raise CommandError(f"topic {topic} has no partition {partition}", NOT_FOUND)
    if to is not None:
        return _changed(before, dict.fromkeys(mine, _brokers(to, live)))
    refuse_if_moving(admin)
    away = sorted({node for replicas in mine.values() for node in replicas if node not in live})
    if away:
        raise CommandError(
            f"broker {away[0]} has replicas and is down: start it again, or move them away with "
            f"`ottla partition drain {away[0]}`"
        )
    try:
        if replication_factor is not None:
            return from_places(reassignment_plan.change_factor(live, to_places(mine), replication_factor))
        return from_places(reassignment_plan.balance(live, to_places(mine)))
    except reassignment_plan.CannotPlan as problem:
        raise CommandError(str(problem)) from None


def drained(admin: Admin, before: Replicas, live: Mapping[int, str | None], broker: int) -> Replicas:
    """Move all replicas away from one broker."""
    from ottla.controller import reassignment_plan

    refuse_if_moving(admin)
    try:
        return from_places(reassignment_plan.drain(live, to_places(before), broker))
    except reassignment_plan.CannotPlan as problem:
        raise CommandError(str(problem)) from None


def _brokers(text: str, live: Mapping[int, str | None]) -> tuple[int, ...]:
    try:
        brokers = tuple(int(each) for each in text.split(","))
    except ValueError:
        raise usage_error(f"--to takes broker ids separated by commas, but got {text!r}") from None
    if len(set(brokers)) != len(brokers):
        raise usage_error(f"--to names a broker twice: {text}")
    unknown = [node for node in brokers if node not in live]
    if unknown:
        raise CommandError(
            f"broker {unknown[0]} is down or does not exist: live brokers are {ids(sorted(live))}", NOT_FOUND
        )
    return brokers


def _changed(before: Replicas, wanted: Replicas) -> Replicas:
    for tp in wanted:
        if tp not in before:
            raise CommandError(f"partition {tp} does not exist", NOT_FOUND)
    return {tp: replicas for tp, replicas in wanted.items() if tuple(before[tp]) != tuple(replicas)}
