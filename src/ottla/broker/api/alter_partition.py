"""AlterPartition (56): a leader asks for another ISR (KIP-497, 841, 903). From broker to controller; not forwarded.

The answer has each partition as it is once the change is committed. Version 3 names the lives of the members, so that
one that restarted meanwhile is not counted in. Errors of the whole: NOT_CONTROLLER, STALE_BROKER_EPOCH, CLUSTER_AUTHORIZATION_FAILED
(the connection is not that broker's). Of a partition:
UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, FENCED_LEADER_EPOCH, INVALID_UPDATE_VERSION, INELIGIBLE_REPLICA, INVALID_REQUEST,
NOT_CONTROLLER (the request knows more than this controller), and NEW_LEADER_ELECTED if the change was made and another one
leads now, because it completed a reassignment, or the leader is about to stop.
A member that leaves just itself out is let go, whether it leads or not: it has lost its records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, Result, serves
from ottla.broker.api.shared.controller_decisions import answer_committed, asked_in_vain
from ottla.controller.isr import ANY_EPOCH, Wish, alter_isr
from ottla.controller.leader_election import Rules, rules_of
from ottla.model.errors import ErrorCode, Refusal

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.metadata.image import TopicImage
    from ottla.metadata.records import Partition

_RECOVERED = 0


@serves(56)
def alter_partition(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    problem = asked_in_vain(broker, call, request.broker_id, request.broker_epoch)
    if problem is not None:
        return _failed(problem)
    changes = _IsrChanges(broker, request.broker_id, call.version)
    topics = []
    for topic in request.topics:
        topic_id = topic.topic_id.bytes if topic.topic_id is not None else bytes(16)
        rows = [changes.row(topic_id, wanted) for wanted in topic.partitions]
        topics.append({"topic_id": topic_id, "partitions": rows})
    records = list(changes.made.values())
    return answer_committed(
        broker, call, request, records, lambda: {"error_code": 0, "topics": topics}, _failed
    )


class _IsrChanges:
    """One request: a partition that it names twice is decided on what became of the first."""

    def __init__(self, broker: Broker, leader: int, version: int) -> None:
        self._image = broker.proposed
        self._config = broker.config
        self._leader = leader
        self._version = version
        self._rules: dict[bytes, Rules] = {}
        self.made: dict[tuple[bytes, int], Partition] = {}

    def row(self, topic_id: bytes, wanted: Any) -> dict[str, Any]:
        try:
            new = self._alter(topic_id, wanted)
        except Refusal as refusal:
            return {
                "partition_index": wanted.partition_index, "error_code": refusal.code, "leader_id": -1,
                "leader_epoch": -1, "isr": (), "leader_recovery_state": _RECOVERED, "partition_epoch": -1,
            }  # fmt: skip
        return {
            "partition_index": new.partition,
            "error_code": 0 if new.leader == self._leader else ErrorCode.NEW_LEADER_ELECTED,
            "leader_id": new.leader,
            "leader_epoch": new.leader_epoch,
            "isr": new.isr,
            "leader_recovery_state": _RECOVERED,
            "partition_epoch": new.partition_epoch,
        }

    def _alter(self, topic_id: bytes, wanted: Any) -> Partition:
        topic = self._image.topics_by_id.get(topic_id)
        if topic is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
        place = (topic_id, wanted.partition_index)
        old = self.made.get(place) or self._image.partition(*place)
        if old is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic has no such partition")
        if wanted.leader_recovery_state != _RECOVERED:
            raise Refusal(ErrorCode.INVALID_REQUEST, "no leader recovers from an unclean election here")
        new = alter_isr(self._image, self._rules_of(topic), old, self._wish(wanted))
        if new is not old:
            self.made[place] = new
        return new

    def _rules_of(self, topic: TopicImage) -> Rules:
        rules = self._rules.get(topic.topic_id)
        if rules is None:
            rules = self._rules[topic.topic_id] = rules_of(self._image, self._config, topic.name)
        return rules

    def _wish(self, wanted: Any) -> Wish:
        if self._version >= 3:
            members = [(member.broker_id, member.broker_epoch) for member in wanted.new_isr_with_epochs]
        else:
            members = [(node, ANY_EPOCH) for node in wanted.new_isr]
        isr = dict(members)
        if len(isr) != len(members):
            raise Refusal(ErrorCode.INVALID_REQUEST, "a broker is twice in the ISR")
        return Wish(self._leader, wanted.leader_epoch, wanted.partition_epoch, isr)


def _failed(code: ErrorCode) -> Response:
    return {"error_code": code, "topics": ()}
