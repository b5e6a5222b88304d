"""What the two kinds of membership have in common: what they ask for, the steps the caller takes, and time.

A member is a state machine without I/O. `group.py` drives it: asks `next` what to send, hands in answers and failures, tells it that
the caller polled, and wakes it at `wake_ms`. One request is under way at a time; an answer to any other is ignored, which is how one
that was overtaken (by leaving, by a lost membership) comes to nothing.

Partitions change hands in steps. The caller's thread takes them inside `poll`, so that it never works on a partition that is
another's already: `revoke` (give these up), `assign` (these are new), `lost` (these are another's already). A rebalance waits for its steps.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from ottla.client.connection import Body
from ottla.client.errors import KafkaError
from ottla.client.metadata import TopicPartition
from ottla.model.errors import ErrorCode

Partitions: TypeAlias = frozenset[TopicPartition]
NOTHING: Partitions = frozenset()

#: What the coordinator answers when another attempt may help.
PASSING = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
    )
)


@dataclass(frozen=True, slots=True)
class MemberSettings:
    group_id: str
    instance_id: str | None = None
    rack: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000


@dataclass(eq=False, slots=True)
class Ask:
    """A request for the coordinator. `held` ones may take long to be answered, so they have a connection of their own."""

    api_key: int
    body: Body
    timeout_ms: int | None = None
    held: bool = False


@dataclass(eq=False, slots=True)
class LookUp:
    """What the member has to know of topics: partition counts by name, names by id. Answered with a `Metadata`."""

    topics: frozenset[str] = frozenset()
    topic_ids: frozenset[bytes] = frozenset()


class Step(NamedTuple):
    """A change of the assignment that the caller carries out: `partitions` are those it is about, `after` what is owned then."""

    kind: Literal["revoke", "assign", "lost"]
    partitions: Partitions
    after: Partitions


class Member(Protocol):
    """The face of both memberships. Times are milliseconds of a clock that never goes back."""

    failure: KafkaError | None
    member_id: str
    generation_id: int
    #: Left because the caller did not poll; the next poll joins again.
    overslept: bool
    #: What people should read in the log.
    notices: list[str]

    @property
    def is_in(self) -> bool:
        """Whether the group counts on this member, as far as it knows."""

    @property
    def is_joining(self) -> bool:
        """Whether a new generation may have begun that this member has not heard of yet."""

    def subscribe(self, topics: frozenset[str], pattern: str | None, now_ms: float) -> None:
        """Want these topics, or those that match at the broker; none and None: nothing any more."""

    def partition_counts(self, counts: Mapping[str, int], now_ms: float) -> None:
        """The metadata was read anew."""

    def polled(self, now_ms: float) -> None:
        """When the caller polled last; now, if it is in a poll."""

    def next(self, now_ms: float) -> Ask | LookUp | None:
        """What to ask now."""

    def wake_ms(self) -> float:
        """When to look at `next` again, if nothing happens before."""

    def answered(self, asked: Ask | LookUp, answer: Any, now_ms: float) -> None: ...

    def failed(self, asked: Ask | LookUp, error: KafkaError, now_ms: float) -> None: ...

    @property
    def step(self) -> Step | None:
        """The step that the caller should take."""

    def step_begins(self) -> None: ...

    def step_ends(self, now_ms: float) -> None: ...

    def leave(self) -> Ask | None:
        """Be a member no more, at once; what to tell the coordinator, if anything."""


class Steps:
    """The steps that wait for the caller, and what it owns."""

    def __init__(self) -> None:
        self.owned: Partitions = NOTHING
        self._steps: deque[Step] = deque()
        self._is_taken = False

    def __bool__(self) -> bool:
        return bool(self._steps)

    @property
    def first(self) -> Step | None:
        return self._steps[0] if self._steps else None

    def revoke(self, partitions: Partitions) -> None:
        if partitions:
            self._steps.append(Step("revoke", partitions, self._planned() - partitions))

    def assign(self, after: Partitions) -> None:
        self._steps.append(Step("assign", after - self._planned(), after))

    def lose(self) -> None:
        """All is another's. A step that the caller is in the middle of is finished first."""
        del_from = 1 if self._is_taken else 0
        while len(self._steps) > del_from:
            self._steps.pop()
        if self._planned():
            self._steps.append(Step("lost", self._planned(), NOTHING))

    def _planned(self) -> Partitions:
        return self._steps[-1].after if self._steps else self.owned

    def begin(self) -> None:
        assert self._steps
        self._is_taken = True

    def end(self) -> None:
        self._is_taken = False
        self.owned = self._steps.popleft().after


class Backoff:
    """How long to wait after failures that follow each other."""

    def __init__(self, first_ms: int, most_ms: int) -> None:
        self._first_ms, self._most_ms = first_ms, most_ms
        self._failures = 0
        self.until_ms = -math.inf

    def failed(self, now_ms: float) -> None:
        wait_ms = min(self._most_ms, self._first_ms << min(self._failures, 16))
        self._failures += 1
        self.until_ms = now_ms + wait_ms

    def worked(self) -> None:
        self._failures, self.until_ms = 0, -math.inf


def overslept_notice(interval_ms: int) -> str:
    return (
        f"left the group: poll() was not called for max_poll_interval_ms ({interval_ms} ms), so the partitions go to other members. "
        "Poll more often, take fewer records at a time (max_poll_records), or raise max_poll_interval_ms; "
        "the next poll joins again"
    )
