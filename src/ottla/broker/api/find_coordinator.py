"""FindCoordinator (10): which broker coordinates a group or a transactional id.

A group's is the leader of its partition of `__consumer_offsets`, a transactional id's that of `__transaction_state`; either topic is
created when it is first asked for, and the answer waits for that. COORDINATOR_NOT_AVAILABLE while there is no such topic or no
leader, and for share groups, which are not served yet; INVALID_REQUEST for an empty or too long transactional id, INVALID_GROUP_ID for
a too long group id; from version 4 on for many keys at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.shared.api_table import NoResponse, Result, serves
from ottla.model.errors import ErrorCode
from ottla.model.limits import NAME_LENGTH_MAX
from ottla.model.strings import is_name
from ottla.ports.coordination import partition_of

if TYPE_CHECKING:
    from ottla.broker.coordinators.coordinator import Coordinator
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work

_GROUP: Final = 0
_TRANSACTION: Final = 1
_SHARE: Final = 2


@serves(10)
def find_coordinator(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    coordinating = _coordinating(broker, getattr(request, "key_type", _GROUP))
    if coordinating is None or coordinating.topic in broker.image.topics:
        return broker.slices.answer(call, _answer(broker, call, request))
    is_waiting = is_created = False

    def created(_code: ErrorCode) -> None:
        nonlocal is_created
        is_created = True
        if is_waiting:
            broker.slices.answer_later(call, _answer(broker, call, request))

    coordinating.create_topic(created)
    if is_created:
        return broker.slices.answer(call, _answer(broker, call, request))
    is_waiting = True
    return NoResponse.LATER


def _coordinating(broker: Broker, key_type: int) -> Coordinator[Any] | None:
    if key_type == _GROUP:
        return broker.groups
    return broker.transactions if key_type == _TRANSACTION else None


def _answer(broker: Broker, call: Call, request: Any) -> Work:
    key_type = getattr(request, "key_type", _GROUP)
    if call.version < 4:
        return _row(broker, key_type, request.key)
    rows = []
    for key in dict.fromkeys(request.coordinator_keys):
        rows.append(_row(broker, key_type, key) | {"key": key})
        # Hashing looks at every character.
        yield 1 + len(key) // 20
    return {"coordinators": rows}


def _row(broker: Broker, key_type: int, key: str) -> dict[str, Any]:
    coordinating = _coordinating(broker, key_type)
    if coordinating is None:
        kind = "share groups" if key_type == _SHARE else "coordinators of this type"
        return _nobody(f"{kind} are not served yet")
    if key_type == _TRANSACTION and not key:
        return _nobody("a transactional id is not empty", ErrorCode.INVALID_REQUEST)
    if not is_name(key):
        code = ErrorCode.INVALID_REQUEST if key_type == _TRANSACTION else ErrorCode.INVALID_GROUP_ID
        return _nobody(f"the key has {len(key)} characters, at most {NAME_LENGTH_MAX} are allowed", code)
    topic = broker.image.topics.get(coordinating.topic)
    if topic is None:
        return _nobody(f"{coordinating.topic} is not there yet")
    leader = topic.partitions[partition_of(key, len(topic.partitions))].leader
    node = broker.image.brokers.get(leader)
    if node is None or node.fenced:
        return _nobody(f"the partition of {coordinating.topic} has no leader")
    return {"error_code": 0, "error_message": None, "node_id": leader, "host": node.host, "port": node.port}


def _nobody(reason: str, code: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE) -> dict[str, Any]:
    return {
        "error_code": code, "error_message": reason,
        "node_id": -1, "host": "", "port": -1,
    }  # fmt: skip
