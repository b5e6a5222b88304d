"""The classic group protocol of a member: join, sync, heartbeat, and rejoin after changes.

    OUT ──subscribed──▶ PREPARING ──steps──▶ JOINING ──▶ (leader: ASSIGNING) ──▶ SYNCING
                            ▲                                                       │
                            │                                                       ▼
                            └──── rebalance, new subscription ◀── STABLE ◀──steps── SETTLING
                                  or new partitions

PREPARING revokes what must not be kept during a rebalance: everything in the eager protocol, only
unsubscribed topics in the cooperative one (KIP-429). There SETTLING revokes the partitions that move, and a
second rebalance assigns them. Heartbeats are sent in PREPARING, SETTLING and STABLE; in the other states the
coordinator waits for the member.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any

from ottla.client.consumer.assignors.assignor import Assignor, Subscriber
from ottla.client.consumer.assignors.names import is_cooperative
from ottla.client.consumer.membership.member import (
    NOTHING,
    PASSING,
    Ask,
    Backoff,
    LookUp,
    MemberSettings,
    Partitions,
    Step,
    Steps,
    overslept_notice,
)
from ottla.client.errors import KafkaError, refused
from ottla.client.metadata import Metadata, TopicPartition
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from ottla.records.consumer_protocol import (
    NEWEST,
    Wanted,
    read_assignment,
    read_subscription,
    version_of,
    write_assignment,
    write_subscription,
)
from ottla.records.layout import Malformed

PROTOCOL_TYPE = "consumer"
#: The coordinator waits for the slowest member's rebalance timeout, and needs a moment to answer then.
JOIN_GRACE_MS = 5_000


class State(Enum):
    OUT = auto()
    PREPARING = auto()
    JOINING = auto()
    ASSIGNING = auto()
    SYNCING = auto()
    SETTLING = auto()
    STABLE = auto()


_BEATING = (State.PREPARING, State.SETTLING, State.STABLE)


class ClassicMember:
    def __init__(self, settings: MemberSettings, assignors: Sequence[Assignor], now_ms: float) -> None:
        self.failure: KafkaError | None = None
        self.notices: list[str] = []
        self.member_id = ""
        self.generation_id = -1
        self.state = State.OUT
        self._settings = settings
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._cooperative = is_cooperative(assignors)
        self._topics: frozenset[str] = frozenset()
        self._steps = Steps()
        #: The last assignment and its generation, for sticky assignors.
        self._last: tuple[Partitions, int] = (NOTHING, -1)
        self._under_way: Ask | LookUp | None = None
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._beat_ms = math.inf
        self._polled_ms = now_ms
        self.overslept = False
        #: Why to rejoin after this rebalance; "" if there is no reason.
        self._again = ""
        self._reason = "joining"
        self._protocol = ""
        self._subscribers: dict[str, Subscriber] = {}
        self._versions: dict[str, int] = {}
        self._skips_assignment = False
        #: As leader: the partition counts of the assignment.
        self._counts: dict[str, int] | None = None
        self._shares: list[dict[str, Any]] = []

    # Events

    @property
    def is_in(self) -> bool:
        return self.generation_id >= 0

    @property
    def is_joining(self) -> bool:
        return self.state in (State.JOINING, State.ASSIGNING, State.SYNCING)

    def subscribe(self, topics: frozenset[str], pattern: str | None, now_ms: float) -> None:
        if topics == self._topics:
            return
        self._topics = topics
        if self.state is not State.OUT:
            self._join_again("the subscription changed")

    def partition_counts(self, counts: Mapping[str, int], now_ms: float) -> None:
        if self._counts is None or self.state not in _BEATING:
            return
        if self._counts != {topic: counts[topic] for topic in self._wanted_by_all() if topic in counts}:
            self._join_again("the partitions of topics changed")

    def polled(self, now_ms: float) -> None:
        woke, self._polled_ms = now_ms > self._polled_ms, now_ms
        if self.overslept and woke:
            self.overslept = False
            self._lose()

    def next(self, now_ms: float) -> Ask | LookUp | None:
        if self.failure is not None:
            return None
        if self._is_overdue(now_ms):
            return self._oversleep()
        if self._under_way is not None or now_ms < self._backoff.until_ms:
            return None
        if self.state is State.OUT and self._topics and not self.overslept:
            self._prepare("joining")
        self._under_way = self._wanted_request(now_ms)
        return self._under_way

    def _wanted_request(self, now_ms: float) -> Ask | LookUp | None:
        if self.state is State.JOINING:
            return self._join()
        if self.state is State.ASSIGNING:
            return LookUp(topics=self._wanted_by_all())
        if self.state is State.SYNCING:
            return self._sync()
        if self.state in _BEATING and self.generation_id >= 0 and now_ms >= self._beat_ms:
            return self._ask(ApiKey.HEARTBEAT, {})
        return None

    def wake_ms(self) -> float:
        if self.failure is not None:
            return math.inf
        times = [math.inf]
        if self._under_way is None and self.state in (State.JOINING, State.ASSIGNING, State.SYNCING):
            times.append(self._backoff.until_ms)
        if self._under_way is None and self.state is State.OUT and self._topics and not self.overslept:
            times.append(self._backoff.until_ms)
        if self.state in _BEATING and self.generation_id >= 0:
            times.append(self._polled_ms + self._settings.max_poll_interval_ms + 1)
            if self._under_way is None:
                times.append(max(self._beat_ms, self._backoff.until_ms))
        return min(times)

    def _is_overdue(self, now_ms: float) -> bool:
        slept_ms = now_ms - self._polled_ms
        return (
            self.state in _BEATING
            and self.generation_id >= 0
            and slept_ms > self._settings.max_poll_interval_ms
        )

    def _oversleep(self) -> Ask | None:
        self.notices.append(overslept_notice(self._settings.max_poll_interval_ms))
        self.overslept = True
        request = self._leave_request("poll was not called for too long")
        self._forget()
        self._under_way = request
        return request

    # The caller's steps

    @property
    def step(self) -> Step | None:
        return self._steps.first

    def step_begins(self) -> None:
        self._steps.begin()

    def step_ends(self, now_ms: float) -> None:
        self._steps.end()
        self._go_on()

    def _go_on(self) -> None:
        """Enter the state that waited for the steps."""
        if self._steps:
            return
        if self.state is State.PREPARING:
            self.state = State.JOINING
        elif self.state is State.SETTLING:
            self.state = State.STABLE
            if self._again:
                self._prepare(self._again)

    def _prepare(self, reason: str) -> None:
        """Revoke what must not be kept, then join."""
        self._reason, self._again = reason, ""
        self.state = State.PREPARING
        if self._cooperative:
            self._steps.revoke(frozenset(tp for tp in self._steps.owned if tp.topic not in self._topics))
        else:
            self._steps.revoke(self._steps.owned)
        self._go_on()

    def _join_again(self, reason: str) -> None:
        if self.state is State.STABLE:
            self._prepare(reason)
        elif self.state is not State.PREPARING:
            # The join in flight has the old topics: join again when it is over.
            self._again = self._again or reason

    def _lose(self) -> None:
        """The group has removed this member: its partitions belong to others."""
        self._counts, self._again, self._under_way = None, "", None
        self.generation_id = -1
        self._reason = "the membership was lost"
        self._steps.lose()
        self.state = State.PREPARING
        self._go_on()

    def _forget(self) -> None:
        self.state = State.OUT
        self.generation_id = -1
        if self._settings.instance_id is None:
            self.member_id = ""
        self._counts, self._again, self._under_way = None, "", None

    def leave(self) -> Ask | None:
        request = self._leave_request("the consumer is closed or unsubscribed")
        self._forget()
        self._topics, self._steps, self.overslept = frozenset(), Steps(), False
        return request

    def _leave_request(self, reason: str) -> Ask | None:
        # A static member comes back: the group keeps its partitions for the session timeout.
        if not self.member_id or self._settings.instance_id is not None:
            return None
        row = {"member_id": self.member_id, "group_instance_id": None, "reason": reason}
        return Ask(
            ApiKey.LEAVE_GROUP,
            {"group_id": self._settings.group_id, "member_id": self.member_id, "members": [row]},
        )

    # Requests

    def _ask(
        self, api_key: int, fields: dict[str, Any], *, timeout_ms: int | None = None, held: bool = True
    ) -> Ask:
        settings = self._settings
        body = {
            "group_id": settings.group_id, "member_id": self.member_id, "group_instance_id": settings.instance_id,
            "generation_id": self.generation_id, "protocol_type": PROTOCOL_TYPE, **fields,
        }  # fmt: skip
        return Ask(api_key, body, timeout_ms, held)

    def _join(self) -> Ask:
        settings = self._settings
        owned = self._steps.owned
        protocols = [
            {
                "name": name,
                "metadata": write_subscription(
                    Wanted(
                        self._topics,
                        owned,
                        settings.rack,
                        self.generation_id,
                        assignor.user_data(*self._last),
                    )
                ),
            }
            for name, assignor in self._assignors.items()
        ]
        fields = {
            "session_timeout": settings.session_timeout_ms, "rebalance_timeout": settings.max_poll_interval_ms,
            "protocols": protocols, "reason": self._reason,
        }  # fmt: skip
        longest_ms = max(settings.request_timeout_ms, settings.max_poll_interval_ms + JOIN_GRACE_MS)
        return self._ask(ApiKey.JOIN_GROUP, fields, timeout_ms=longest_ms)

    def _sync(self) -> Ask:
        longest_ms = max(
            self._settings.request_timeout_ms, self._settings.max_poll_interval_ms + JOIN_GRACE_MS
        )
        fields = {"protocol_name": self._protocol, "assignments": self._shares}
        return self._ask(ApiKey.SYNC_GROUP, fields, timeout_ms=longest_ms)

    # Responses

    def failed(self, asked: Ask | LookUp, error: KafkaError, now_ms: float) -> None:
        if asked is not self._under_way:
            return
        self._under_way = None
        if self.overslept:
            return
        if error.retriable or isinstance(asked, LookUp):
            self._backoff.failed(now_ms)
        else:
            self.failure = error

    def answered(self, asked: Ask | LookUp, answer: Any, now_ms: float) -> None:
        if asked is not self._under_way:
            return
        self._under_way = None
        if isinstance(asked, LookUp):
            self._assign(answer)
            return
        if asked.api_key == ApiKey.LEAVE_GROUP:
            return
        code = int(answer.error_code)
        if not code:
            self._backoff.worked()
            _GOOD[asked.api_key](self, answer, now_ms)
        elif code in PASSING:
            self._backoff.failed(now_ms)
        else:
            self._refused(asked, code, answer, now_ms)

    def _refused(self, asked: Ask, code: int, answer: Any, now_ms: float) -> None:
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._rebalance(asked, now_ms)
        elif code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = str(answer.member_id)
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            self._lose()
            self._backoff.failed(now_ms)
        else:
            what = f"being a member of group {self._settings.group_id!r}"
            self.failure = refused(code, what)

    def _rebalance(self, asked: Ask, now_ms: float) -> None:
        if asked.api_key == ApiKey.HEARTBEAT:
            self._beat_ms = now_ms + self._settings.heartbeat_interval_ms
            self._join_again("the group rebalances")
        elif asked.api_key == ApiKey.SYNC_GROUP:
            self.state = State.JOINING
            self._reason = "the group rebalances"
        else:
            self._backoff.failed(now_ms)

    def _joined(self, answer: Any, now_ms: float) -> None:
        self.member_id = str(answer.member_id)
        self.generation_id = int(answer.generation_id)
        self._protocol = str(answer.protocol_name)
        self._shares, self._counts = [], None
        if answer.leader != answer.member_id:
            self.state = State.SYNCING
            return
        self._skips_assignment = bool(answer.skip_assignment)
        self._subscribers, self._versions = {}, {}
        for row in answer.members:
            data = bytes(row.metadata)
            try:
                wanted = read_subscription(data)
            except Malformed:
                # The assignment is malformed by another client: take nothing, so that the others continue.
                wanted, data = Wanted(frozenset()), b"\0\0"
            self._versions[row.member_id] = version_of(data)
            self._subscribers[row.member_id] = Subscriber(
                wanted.topics, frozenset(TopicPartition(*place) for place in wanted.owned), wanted.generation,
                row.group_instance_id, wanted.rack, wanted.user_data,
            )  # fmt: skip
        self.state = State.ASSIGNING

    def _wanted_by_all(self) -> frozenset[str]:
        return frozenset().union(*(member.topics for member in self._subscribers.values()))

    def _assign(self, metadata: Metadata) -> None:
        """As leader: run the assignor."""
        self._counts = {
            topic: metadata.partition_count(topic)
            for topic in self._wanted_by_all()
            if topic in metadata.topics
        }
        self.state = State.SYNCING
        if self._skips_assignment:
            return
        assignor = self._assignors[self._protocol]
        try:
            shares = assignor.assign(self._counts, self._subscribers)
        except Exception as error:
            self.failure = KafkaError(
                f"the assignor {assignor.name!r} failed: {error!r}",
                advice="See __cause__ and fix the assignor",
            )
            self.failure.__cause__ = error
            return
        self._shares = [
            {
                "member_id": name,
                "assignment": write_assignment(min(self._versions[name], NEWEST), shares.get(name, ())),
            }
            for name in self._subscribers
        ]

    def _synced(self, answer: Any, now_ms: float) -> None:
        try:
            places, _ = read_assignment(bytes(answer.assignment))
        except Malformed as error:
            self.failure = KafkaError(
                f"the leader of group {self._settings.group_id!r} sent an invalid assignment: {error}",
                advice="See which client leads the group with `ottla group describe`",
            )
            return
        assigned = frozenset(TopicPartition(*place) for place in places)
        self._last = (assigned, self.generation_id)
        self._beat_ms = now_ms + self._settings.heartbeat_interval_ms
        moved = self._steps.owned - assigned
        self._steps.revoke(moved)
        self._steps.assign(assigned)
        if moved:
            # The new owners wait until this member reports that it has revoked them.
            self._again = "partitions were given up"
        self.state = State.SETTLING

    def _beaten(self, answer: Any, now_ms: float) -> None:
        self._beat_ms = now_ms + self._settings.heartbeat_interval_ms


_GOOD: Mapping[int, Callable[[ClassicMember, Any, float], None]] = {
    ApiKey.JOIN_GROUP: ClassicMember._joined,
    ApiKey.SYNC_GROUP: ClassicMember._synced,
    ApiKey.HEARTBEAT: ClassicMember._beaten,
}
