"""Carrying out a plan of `ottla partition`: throttle, begin, watch it, elect the leaders it meant, take the throttle away.

The cluster does the moving; this only asks and looks. So a command that is interrupted leaves the move running, with its throttle,
and says how to look at it and how to take the throttle away afterwards.
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

#: How many partitions one request moves: a plan of ten thousand is begun in steps that the cluster's metadata can take.
_REQUEST_PARTITIONS = 1000
_LOOK_S = 0.25
_BAR_CELLS = 24

BROKER_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
TOPIC_REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")

Replicas = Mapping["TopicPartition", Sequence[int]]


def read_plan(path: Path) -> dict[TopicPartition, tuple[int, ...]]:
    """A plan in the form that Kafka's own tool reads and writes, and `--dry-run --json` prints."""
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
            f"{path} is no plan ({error}): it must look like "
            '{"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2]}]}'
        ) from None


def plan_json(plan: Replicas) -> dict[str, Any]:
    rows = [
        {"topic": tp.topic, "partition": tp.partition, "replicas": list(replicas)}
        for tp, replicas in sorted(plan.items())
    ]
    return {"version": 1, "partitions": rows}


def copies(before: Replicas, plan: Replicas) -> int:
    """How many replicas are copied."""
    return sum(len(set(replicas) - set(before.get(tp, ()))) for tp, replicas in plan.items())


class Move:
    """One plan on its way."""

    def __init__(
        self, admin: Admin, before: Replicas, plan: Replicas, throttle: int | None, *, watched: bool
    ) -> None:
        self.admin = admin
        self.before = before
        self.plan = plan
        self.throttle = throttle
        self.watched = watched

    def carry_out(self) -> dict[TopicPartition, Election]:
        """Begin, and unless nobody watches see it through; returns what the elections at its end came to."""
        brokers = {node for tp, to in self.plan.items() for node in (*to, *self.before.get(tp, ()))}
        try:
            if self.throttle is not None:
                set_throttle(self.admin, self.before, self.plan, brokers, self.throttle)
            for part in _parts(self.plan):
                self.admin.alter_partition_reassignments(part)
        except Exception:
            if reassignments(self.admin, list(self.plan)):
                # Some of it was accepted before something was refused.
                self._tell_how_to_look()
            elif self.throttle is not None:
                remove_throttle(self.admin, brokers, {tp.topic for tp in self.plan})
            raise
        if not self.watched:
            self._tell_how_to_look()
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
        self._tell_how_to_look()
        raise SystemExit(INTERRUPTED)

    def _tell_how_to_look(self) -> None:
        say("the move goes on; look at it with `ottla partition reassign --status`, end it with --cancel")
        if self.throttle is not None:
            say(
                "its throttle stays: when it is done, take it away with `ottla partition reassign --unthrottle`"
            )


def bar(done: int, total: int) -> str:
    filled = _BAR_CELLS * done // max(total, 1)
    return f"[{'#' * filled}{'.' * (_BAR_CELLS - filled)}]"


def _parts(plan: Replicas) -> Iterator[dict[TopicPartition, Sequence[int] | None]]:
    rows = sorted(plan.items())
    for start in range(0, len(rows), _REQUEST_PARTITIONS):
        yield dict(rows[start : start + _REQUEST_PARTITIONS])


def elect_preferred(admin: Admin, plan: Replicas) -> dict[TopicPartition, Election]:
    """Let those lead that the plan names first, where another does."""
    topics = admin.describe_topics(sorted({tp.topic for tp in plan}))
    wrong = [
        tp
        for tp, replicas in plan.items()
        if (part := topics[tp.topic].partitions.get(tp.partition)) and part.leader != replicas[0]
    ]
    return admin.elect_leaders(wrong) if wrong else {}


# --- throttles ----------------------------------------------------------------------------------------------------


def set_throttle(admin: Admin, before: Replicas, plan: Replicas, brokers: set[int], bytes_per_s: int) -> None:
    """Hold the copying of a plan to a rate: those that have a partition lead it, those that get it follow."""
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
            # Deleted meanwhile, and its settings with it.
            continue
    for node in sorted(brokers):
        try:
            admin.alter_configs(Resource("broker", str(node)), dict.fromkeys(BROKER_RATES))
        except BrokerNotFound:
            continue


def refuse_if_moving(admin: Admin) -> None:
    """A plan is made of what is there, and during another move nothing is."""
    moving = reassignments(admin)
    if moving:
        raise CommandError(
            f"{len(moving)} partition(s) are being moved: wait for them (`ottla partition reassign --status`), "
            "or end that move with --cancel",
            FAILED,
        )
