"""The consumer protocol (KIP-848) of a member: one heartbeat that reports the subscription and the owned
partitions.

The coordinator assigns. Its responses contain an epoch and, after a change, the full target assignment. A
partition is in the target only after its last owner has given it up. The member takes the steps (revoke, then
assign), and reports them in its next heartbeat, which it sends at once. Unchanged fields are left out; after
a failure all fields are sent.

Epochs: 0 joins, -1 leaves, -2 leaves temporarily as a static member. A fenced member has lost its partitions
and joins again with its id. Targets have topic ids; unknown ids are looked up, and wait until they are known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ottla.client.consumer.membership.member import (
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

JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH = 0, -1, -2
#: How long an unknown topic id is not looked up again: the topic is new here, or deleted.
LOOK_AGAIN_MS = 1_000

_FENCED = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)


class ConsumerMember:
    def __init__(
        self, settings: MemberSettings, remote_assignor: str | None, member_id: str, now_ms: float
    ) -> None:
        self.failure: KafkaError | None = None
        self.notices: list[str] = []
        self.member_id = member_id
        self.generation_id = JOIN_EPOCH
        self._settings = settings
        self._remote_assignor = remote_assignor
        self._topics: frozenset[str] = frozenset()
        self._pattern: str | None = None
        self._had_pattern = False
        self._steps = Steps()
        #: The target assignment by topic id; None before the first one.
        self._target: dict[bytes, frozenset[int]] | None = None
        self._names: dict[bytes, str] = {}
        self._ids: dict[str, bytes] = {}
        self._looked_ms = -math.inf
        self._under_way: Ask | LookUp | None = None
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._beat_ms = -math.inf
        self._interval_ms = float(settings.heartbeat_interval_ms)
        self._polled_ms = now_ms
        self.overslept = False
        #: The subscription in the last heartbeat that was answered; None if all fields must be sent.
        self._reported: tuple[frozenset[str], str | None] | None = None
        self._reported_owned: Partitions | None = None

    # Events

    @property
    def _is_wanted(self) -> bool:
        return bool(self._topics or self._pattern) and not self.overslept

    @property
    def is_in(self) -> bool:
        return self.generation_id > 0

    @property
    def is_joining(self) -> bool:
        return False

    def subscribe(self, topics: frozenset[str], pattern: str | None, now_ms: float) -> None:
        if (topics, pattern) == (self._topics, self._pattern):
            return
        self._topics, self._pattern = topics, pattern
        self._beat_ms = -math.inf

    def partition_counts(self, counts: Mapping[str, int], now_ms: float) -> None:
        """Not needed: the coordinator watches the topics."""

    def polled(self, now_ms: float) -> None:
        woke, self._polled_ms = now_ms > self._polled_ms, now_ms
        if self.overslept and woke:
            self.overslept = False
            self._lose()

    def next(self, now_ms: float) -> Ask | LookUp | None:
        if self.failure is not None or not self._is_wanted:
            return None
        if self._is_overdue(now_ms):
            self.notices.append(overslept_notice(self._settings.max_poll_interval_ms))
            request = self._leave_request()
            self.overslept = True
            self.generation_id, self._under_way = JOIN_EPOCH, request
            return request
        if self._under_way is not None or now_ms < self._backoff.until_ms:
            return None
        unknown = self._unknown()
        if unknown and now_ms - self._looked_ms >= LOOK_AGAIN_MS:
            self._looked_ms = now_ms
            self._under_way = LookUp(topic_ids=unknown)
        elif now_ms >= self._beat_ms and not self._waits_for_steps():
            self._under_way = self._heartbeat()
        return self._under_way

    def wake_ms(self) -> float:
        if self.failure is not None or not self._is_wanted:
            return math.inf
        times = [math.inf]
        if self.generation_id > 0:
            times.append(self._polled_ms + self._settings.max_poll_interval_ms + 1)
        if self._under_way is None:
            if not self._waits_for_steps():
                times.append(max(self._beat_ms, self._backoff.until_ms))
            if self._unknown():
                times.append(max(self._looked_ms + LOOK_AGAIN_MS, self._backoff.until_ms))
        return min(times)

    def _waits_for_steps(self) -> bool:
        """A member that lost everything joins again after the caller has been notified."""
        return self.generation_id == JOIN_EPOCH and bool(self._steps)

    def _is_overdue(self, now_ms: float) -> bool:
        return self.generation_id > 0 and now_ms - self._polled_ms > self._settings.max_poll_interval_ms

    # The caller's steps

    @property
    def step(self) -> Step | None:
        return self._steps.first

    def step_begins(self) -> None:
        self._steps.begin()

    def step_ends(self, now_ms: float) -> None:
        self._steps.end()
        if not self._steps:
            self._beat_ms = -math.inf
            self._reconcile()

    def _reconcile(self) -> None:
        """Plan the steps from the owned to the target assignment."""
        if self._steps or self._target is None:
            return
        wanted = frozenset(
            TopicPartition(self._names[topic_id], number)
            for topic_id, numbers in self._target.items()
            if topic_id in self._names
            for number in numbers
        )
        if wanted != self._steps.owned:
            self._steps.revoke(self._steps.owned - wanted)
            self._steps.assign(wanted)

    def _unknown(self) -> frozenset[bytes]:
        return frozenset(topic_id for topic_id in self._target or () if topic_id not in self._names)

    def _lose(self) -> None:
        self.generation_id = JOIN_EPOCH
        self._target = self._reported = self._reported_owned = None
        self._under_way = None
        self._beat_ms = -math.inf
        self._steps.lose()

    def leave(self) -> Ask | None:
        # The coordinator may still process a join that is in flight.
        was_reported = self._reported is not None
        request = self._leave_request() if self.generation_id > 0 or was_reported else None
        self._lose()
        self._topics, self._pattern, self._steps, self.overslept = frozenset(), None, Steps(), False
        return request

    def _leave_request(self) -> Ask:
        epoch = LEAVE_EPOCH if self._settings.instance_id is None else LEAVE_STATIC_EPOCH
        return self._ask(epoch, {})

    # Requests and responses

    def _ask(self, epoch: int, fields: dict[str, Any]) -> Ask:
        unchanged = {
            "rack_id": None, "rebalance_timeout": -1, "subscribed_topic_names": None,
            "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": None,
        }  # fmt: skip
        identity = {
            "group_id": self._settings.group_id, "member_id": self.member_id, "member_epoch": epoch,
            "instance_id": self._settings.instance_id,
        }  # fmt: skip
        return Ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, {**identity, **unchanged, **fields})

    def _heartbeat(self) -> Ask:
        fields: dict[str, Any] = {}
        wish = (self._topics, self._pattern)
        if self._reported is None:
            fields["rack_id"] = self._settings.rack
            fields["rebalance_timeout"] = self._settings.max_poll_interval_ms
            fields["server_assignor"] = self._remote_assignor
        if self._reported != wish:
            fields["subscribed_topic_names"] = sorted(self._topics)
            # An empty pattern removes an earlier one.
            fields["subscribed_topic_regex"] = self._pattern or ("" if self._had_pattern else None)
            self._had_pattern = self._had_pattern or self._pattern is not None
        if self._reported_owned != self._steps.owned:
            fields["topic_partitions"] = self._owned_rows()
        self._reported, self._reported_owned = wish, self._steps.owned
        return self._ask(self.generation_id, fields)

    def _owned_rows(self) -> list[dict[str, Any]]:
        by_topic: dict[str, list[int]] = {}
        for topic, number in sorted(self._steps.owned):
            by_topic.setdefault(topic, []).append(number)
        return [{"topic_id": self._ids[topic], "partitions": numbers} for topic, numbers in by_topic.items()]

    def failed(self, asked: Ask | LookUp, error: KafkaError, now_ms: float) -> None:
        if asked is not self._under_way:
            return
        self._under_way = None
        if self.overslept:
            return
        if error.retriable or isinstance(asked, LookUp):
            # It is unknown whether the coordinator received it.
            self._reported = self._reported_owned = None
            self._backoff.failed(now_ms)
        else:
            self.failure = error

    def answered(self, asked: Ask | LookUp, answer: Any, now_ms: float) -> None:
        if asked is not self._under_way:
            return
        self._under_way = None
        if isinstance(asked, LookUp):
            self._learn(asked, answer)
        elif not self.overslept:
            code = int(answer.error_code)
            if not code:
                self._accept(answer, now_ms)
            elif code in PASSING:
                self._reported = self._reported_owned = None
                self._backoff.failed(now_ms)
            elif code in _FENCED:
                self._lose()
                self._backoff.failed(now_ms)
            else:
                self._fail(code, answer)

    def _accept(self, answer: Any, now_ms: float) -> None:
        self._backoff.worked()
        self.member_id = str(answer.member_id or self.member_id)
        self.generation_id = int(answer.member_epoch)
        self._interval_ms = answer.heartbeat_interval.total_seconds() * 1000
        self._beat_ms = now_ms + self._interval_ms
        if (self._topics, self._pattern) != self._reported or self._steps.owned != self._reported_owned:
            self._beat_ms = now_ms
        if answer.assignment is not None:
            self._target = {
                row.topic_id.bytes: frozenset(int(number) for number in row.partitions)
                for row in answer.assignment.topic_partitions
            }
            self._reconcile()

    def _learn(self, asked: LookUp, metadata: Metadata) -> None:
        for topic_id in asked.topic_ids:
            name = metadata.names.get(topic_id)
            if name is not None:
                if name in self._ids:
                    # The topic was re-created: report the owned partitions with the new id.
                    self._reported_owned = None
                self._names[topic_id] = name
                self._ids[name] = topic_id
        self._reconcile()

    def _fail(self, code: int, answer: Any) -> None:
        what = f"being a member of group {self._settings.group_id!r}"
        self.failure = refused(code, what, message=answer.error_message or None)
