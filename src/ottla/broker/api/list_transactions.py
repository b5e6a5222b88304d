"""ListTransactions (66): the transactional ids that this broker coordinates, and what they are at.

They are listed by state and producer id, by how long their transaction has been going on (version 1), by a pattern (version 2; KIP-664,
994, 1152).
States that there are none of are named in the answer. Errors: COORDINATOR_LOAD_IN_PROGRESS while some are not loaded yet: a list with
gaps would be taken for the whole; INVALID_REGULAR_EXPRESSION.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, Result, serves
from ottla.broker.api.shared.group_requests import CombinedReply
from ottla.groups.regex import BadPattern, compiled
from ottla.model.errors import ErrorCode
from ottla.ports.coordination import Decision
from ottla.transactions.shard import STATES, Filter

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


@serves(66)
def list_transactions(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    transactions = broker.transactions
    if transactions.is_loading:
        transactions.load_now()
        if transactions.is_loading:
            return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    wanted = {name: STATES.get(name) for name in request.state_filters}
    unknown = [name for name, state in wanted.items() if state is None]
    pattern = request.transactional_id_pattern if call.version >= 2 else None
    try:
        matches = compiled(pattern).fullmatch if pattern else None
    except BadPattern:
        return _refused(ErrorCode.INVALID_REGULAR_EXPRESSION)
    filtered = Filter(
        set(request.producer_id_filters) or None,
        {state for state in wanted.values() if state is not None} if wanted else None,
        request.duration_filter if call.version >= 1 else -1,
        matches,
    )

    def finish(parts: list[Any]) -> Response:
        rows = [row for part in parts for row in part.get("rows", ())]
        return {"error_code": 0, "unknown_state_filters": unknown, "transaction_states": rows}

    shards = list(transactions.shards)
    combined = CombinedReply(broker, call, len(shards), finish)
    for at, shard in enumerate(shards):
        # A part that is lost meanwhile has moved, and is listed where it is.
        row = combined.row(at, lambda _code: {})
        shard.host.schedule(Decision(answers=[(row, {"rows": shard.listed(filtered)})], is_read=True))
    return combined.outcome


def _refused(code: ErrorCode) -> Response:
    return {"error_code": code, "unknown_state_filters": [], "transaction_states": []}
