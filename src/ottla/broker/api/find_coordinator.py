"""FindCoordinator (10): which broker coordinates a group or a transactional id.

A group's is the leader of its partition of `__consumer_offsets`, which is created when it is first asked for; the answer waits for
that. COORDINATOR_NOT_AVAILABLE while there is no such topic or no leader, and for transactional ids and share groups, which are
not served yet; from version 4 on for many keys at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.table import SILENT, WAIT, Response, serves
from ottla.broker.group_coordinating import OFFSETS_TOPIC
from ottla.model.errors import ErrorCode
from ottla.ports.coordination import partition_of

if TYPE_CHECKING:
    from ottla.broker.connection import Call
    from ottla.broker.core import Broker

_GROUP: Final = 0
_NAMES: Final = {1: "transactions", 2: "share groups"}


@serves(10)
def find_coordinator(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    if getattr(request, "key_type", _GROUP) != _GROUP or OFFSETS_TOPIC in broker.image.topics:
        return _answer(broker, call, request)
    answered = False

    def created(_code: ErrorCode) -> None:
        nonlocal answered
        answered = True
        broker.answer(call, _answer(broker, call, request))

    broker.groups.create_topic(created)
    return SILENT if answered else WAIT


def _answer(broker: Broker, call: Call, request: Any) -> Response:
    key_type = getattr(request, "key_type", _GROUP)
    if call.version < 4:
        return _row(broker, key_type, request.key)
    return {
        "coordinators": [
            _row(broker, key_type, key) | {"key": key} for key in dict.fromkeys(request.coordinator_keys)
        ]
    }


def _row(broker: Broker, key_type: int, key: str) -> dict[str, Any]:
    if key_type != _GROUP:
        return _nobody(f"{_NAMES.get(key_type, 'coordinators of this type')} are not served yet")
    topic = broker.image.topics.get(OFFSETS_TOPIC)
    if topic is None:
        return _nobody(f"{OFFSETS_TOPIC} is not there yet")
    leader = topic.partitions[partition_of(key, len(topic.partitions))].leader
    node = broker.image.brokers.get(leader)
    if node is None or node.fenced:
        return _nobody("the group's partition has no leader")
    return {"error_code": 0, "error_message": None, "node_id": leader, "host": node.host, "port": node.port}


def _nobody(reason: str) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE, "error_message": reason,
        "node_id": -1, "host": "", "port": -1,
    }  # fmt: skip
