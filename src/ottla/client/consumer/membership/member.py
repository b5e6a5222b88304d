"""The interface of both memberships: their requests, the steps of the caller, and time.

A member is a state machine without I/O. `group.py` drives it: it asks `next` what to send, passes responses
and failures, reports polls, and wakes it at `wake_ms`. One request is in flight at a time; responses to other
requests are ignored, for example after leaving.

Assignments change in steps, which the caller's thread takes inside `poll`. So it never processes a partition
that another member has. The steps are `revoke` (give these up), `assign` (these are new) and `lost` (others
have these already). A rebalance waits for its steps.
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

#: Error codes of the coordinator that a retry may resolve.
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
    """A request to the coordinator. `held` requests may take long, so they have their own connection."""

    api_key: int
    body: Body
    timeout_ms: int | None = None
    held: bool = False


@dataclass(eq=False, slots=True)
class LookUp:
    """Topic metadata that the member needs: partition counts by name, names by id. The answer is a
    `Metadata`.
    """

    topics: frozenset[str] = frozenset()
    topic_ids: frozenset[bytes] = frozenset()


class Step(NamedTuple):
    """A change of the assignment for the caller: `partitions` are the changed ones, `after` is the result."""

    kind: Literal["revoke", "assign", "lost"]
    partitions: Partitions
    after: Partitions


class Member(Protocol):
    """The interface of both memberships. Times are milliseconds of a monotonic clock."""

    failure: KafkaError | None
    member_id: str
    generation_id: int
    #: Left because the caller did not poll in time; the next poll joins again.
    overslept: bool
    #: Messages for the log.
    notices: list[str]

    @property
    def is_in(self) -> bool:
        """Whether this is a member of the group, as far as it knows."""

    @property
    def is_joining(self) -> bool:
        """Whether there may be a new generation that this member does not know yet."""

    def subscribe(self, topics: frozenset[str], pattern: str | None, now_ms: float) -> None:
        """Subscribe to topics, or to a pattern that the broker matches; () and None: unsubscribe."""

    def partition_counts(self, counts: Mapping[str, int], now_ms: float) -> None:
        """New metadata is available."""

    def polled(self, now_ms: float) -> None:
        """The time of the caller's last poll; the current time during a poll."""

    def next(self, now_ms: float) -> Ask | LookUp | None:
        """The next request."""

    def wake_ms(self) -> float:
        """When to call `next` again, if nothing happens before."""

    def answered(self, asked: Ask | LookUp, answer: Any, now_ms: float) -> None: ...

    def failed(self, asked: Ask | LookUp, error: KafkaError, now_ms: float) -> None: ...

    @property
    def step(self) -> Step | None:
        """The next step for the caller."""

    def step_begins(self) -> None: ...

    def step_ends(self, now_ms: float) -> None: ...

    def leave(self) -> Ask | None:
        """Leave at once. Return the request for the coordinator, if there is one."""


class Steps:
    """The steps that wait for the caller, and its owned partitions."""

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
        """Everything is lost. A step that the caller has started is finished first."""
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
    """The back-off after consecutive failures."""

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
        f"left the group: poll() was not called for max_poll_interval_ms ({interval_ms} ms), "
        "so the partitions go to other members. Poll more often, lower max_poll_records, "
        "or raise max_poll_interval_ms; the next poll joins again"
    )
