"""Execution of a reassignment plan: throttle, start, wait, elect preferred leaders, unthrottle.

The cluster moves the partitions; the command only starts and watches. An interrupted command leaves the move
and its throttle running, and prints how to watch the move and how to remove the throttle.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ottla.cli.outcome import FAILED, INTERRUPTED, CommandError, say, usage_error
from ottla.cli.progress import ProgressLine
from ottla.cli.topic import reassignments

if TYPE_CHECKING:
    from ottla.client.admin.partitions import Election
    from ottla.client.admin.sync import Admin
    from ottla.client.metadata import TopicPartition

#: Partitions per request: a plan of ten thousand starts in steps that the metadata log can take.
_REQUEST_PARTITIONS = 1000
_LOOK_S = 0.25
_BAR_CELLS = 24

BROKER_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
TOPIC_REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")

Replicas = Mapping["TopicPartition", Sequence[int]]


def read_plan(path: Path) -> dict[TopicPartition, tuple[int, ...]]:
    """Read a plan in the format of kafka-reassign-partitions and of `--dry-run --json`."""
    from ottla.client.metadata import TopicPartition

    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["partitions"]
        return {
            TopicPartition(str(row["topic"]), int(row["partition"])): tuple(
                int(node) for node in row["replicas"]
            )
            for row in rows
        }
    except (ValueError, KeyError, TypeError) as error:
        raise usage_error(
            f"{path} is not a reassignment plan ({error}): it must look like "
            '{"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2]}]}'
        ) from None


def plan_json(plan: Replicas) -> dict[str, Any]:
    rows = [
        {"topic": tp.topic, "partition": tp.partition, "replicas": list(replicas)}
        for tp, replicas in sorted(plan.items())
    ]
    return {"version": 1, "partitions": rows}


def copies(before: Replicas, plan: Replicas) -> int:
    """The number of replicas to copy."""
    return sum(len(set(replicas) - set(before.get(tp, ()))) for tp, replicas in plan.items())


class Move:
    """The execution of one plan."""

    def __init__(
        self, admin: Admin, before: Replicas, plan: Replicas, throttle: int | None, *, watched: bool
    ) -> None:
        self.admin = admin
        self.before = before
        self.plan = plan
        self.throttle = throttle
        self.watched = watched

    def carry_out(self) -> dict[TopicPartition, Election]:
        """Start the move and, if `watched`, wait for its end; returns the results of the leader elections."""
        brokers = {node for tp, to in self.plan.items() for node in (*to, *self.before.get(tp, ()))}
        try:
            if self.throttle is not None:
                set_throttle(self.admin, self.before, self.plan, brokers, self.throttle)
            for part in _parts(self.plan):
                self.admin.alter_partition_reassignments(part)
        except Exception:
            if reassignments(self.admin, list(self.plan)):
                # A part of the plan was accepted before a request failed.
                self._print_next_steps()
            elif self.throttle is not None:
                remove_throttle(self.admin, brokers, {tp.topic for tp in self.plan})
            raise
        if not self.watched:
            self._print_next_steps()
            return {}
        try:
            self._watch()
        except KeyboardInterrupt:
            self._interrupted()
        elected = elect_preferred(self.admin, self.plan)
        if self.throttle is not None:
            remove_throttle(self.admin, brokers, {tp.topic for tp in self.plan})
        return elected

    def _watch(self) -> None:
        line = ProgressLine()
        moving = list(self.plan)
        try:
            while left := self.admin.list_partition_reassignments(moving):
                done = len(self.plan) - len(left)
                line.show(f"{bar(done, len(self.plan))} {done} of {len(self.plan)} partitions moved")
                time.sleep(_LOOK_S)
        finally:
            line.clear()

    def _interrupted(self) -> NoReturn:
        self._print_next_steps()
        raise SystemExit(INTERRUPTED)

    def _print_next_steps(self) -> None:
        say(
            "the move continues: watch it with `ottla partition reassign --status`, "
            "cancel it with `ottla partition reassign --cancel`"
        )
        if self.throttle is not None:
            say("the throttle stays: remove it after the move with `ottla partition reassign --unthrottle`")


def bar(done: int, total: int) -> str:
    filled = _BAR_CELLS * done // max(total, 1)
    return f"[{'#' * filled}{'.' * (_BAR_CELLS - filled)}]"


def _parts(plan: Replicas) -> Iterator[dict[TopicPartition, Sequence[int] | None]]:
    rows = sorted(plan.items())
    for start in range(0, len(rows), _REQUEST_PARTITIONS):
        yield dict(rows[start : start + _REQUEST_PARTITIONS])


def elect_preferred(admin: Admin, plan: Replicas) -> dict[TopicPartition, Election]:
    """Elect the first replica of each partition of the plan, where another one leads."""
    topics = admin.describe_topics(sorted({tp.topic for tp in plan}))
    wrong = [
        tp
        for tp, replicas in plan.items()
        if (part := topics[tp.topic].partitions.get(tp.partition)) and part.leader != replicas[0]
    ]
    return admin.elect_leaders(wrong) if wrong else {}


# --- throttles ----------------------------------------------------------------------------------------------


def set_throttle(admin: Admin, before: Replicas, plan: Replicas, brokers: set[int], bytes_per_s: int) -> None:
    """Throttle the copies of a plan: current replicas as leaders, new replicas as followers."""
    from ottla.client.admin.core import Resource

    pairs: dict[str, tuple[set[str], set[str]]] = {}
    for tp, replicas in plan.items():
        leaders, followers = pairs.setdefault(tp.topic, (set(), set()))
        had = before.get(tp, ())
        leaders.update(f"{tp.partition}:{node}" for node in had)
        followers.update(f"{tp.partition}:{node}" for node in replicas if node not in had)
    for topic, texts in sorted(pairs.items()):
        changes = {name: ",".join(sorted(text)) for name, text in zip(TOPIC_REPLICAS, texts, strict=True)}
        admin.alter_configs(Resource("topic", topic), changes)
    for node in sorted(brokers):
        admin.alter_configs(Resource("broker", str(node)), dict.fromkeys(BROKER_RATES, str(bytes_per_s)))


def remove_throttle(admin: Admin, brokers: set[int], topics: set[str]) -> None:
    from ottla.client.admin.core import Resource
    from ottla.client.errors import BrokerNotFound, TopicNotFound

    for topic in sorted(topics):
        try:
            admin.alter_configs(Resource("topic", topic), dict.fromkeys(TOPIC_REPLICAS))
        except TopicNotFound:
            # The topic was deleted meanwhile, with its configs.
            continue
    for node in sorted(brokers):
        try:
            admin.alter_configs(Resource("broker", str(node)), dict.fromkeys(BROKER_RATES))
        except BrokerNotFound:
            continue


def refuse_if_moving(admin: Admin) -> None:
    """A plan needs stable replicas: refuse it during another move."""
    moving = reassignments(admin)
    if moving:
        raise CommandError(
            f"{len(moving)} partition(s) are being moved: wait for the end (`ottla partition reassign "
            "--status`), "
            "or cancel with `ottla partition reassign --cancel`",
            FAILED,
        )
