"""ListGroups (16): the groups that this broker coordinates, from version 4 on by their states, from version 5 on by their types.

COORDINATOR_LOAD_IN_PROGRESS while some are not loaded yet: a list with gaps would be taken for the whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Result, serves
from ottla.model.errors import ErrorCode
from ottla.wire.sliced import chunks

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work


@serves(16)
def list_groups(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    coordinating = broker.groups
    if coordinating.is_loading:
        coordinating.load_now()
        if coordinating.is_loading:
            return {"error_code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "groups": []}
    states = {state.lower() for state in request.states_filter} if call.version >= 4 else set()
    types = {kind.lower() for kind in request.types_filter} if call.version >= 5 else set()
    rows: list[dict[str, Any]] = []
    return broker.slices.answer(call, _listed(broker, states, types, rows), "groups", rows)


def _listed(broker: Broker, states: set[str], types: set[str], rows: list[dict[str, Any]]) -> Work:
    for shard in list(broker.groups.shards):
        yield 1
        for listed in chunks(shard.listed()):
            rows += [
                row
                for row in listed
                if (not states or row["group_state"].lower() in states)
                and (not types or row["group_type"].lower() in types)
            ]
            yield len(listed)
    return {"error_code": 0}
