"""DescribeClientQuotas (48): quotas of users, client ids and IP addresses; there are none, so the answer is empty.

The filter is checked as Kafka does. Errors: INVALID_REQUEST for a filter that makes no sense, UNSUPPORTED_VERSION for an entity type other
than user, client-id and ip.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, serves
from ottla.broker.api.shared.proposals import refused
from ottla.model.errors import ErrorCode, Refusal

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


_USER, _CLIENT_ID, _IP = _ENTITY_TYPES = ("user", "client-id", "ip")
#: Exactly this name, the default entity, any name.
_MATCH_TYPES = (0, 1, 2)


@serves(48)
def describe_client_quotas(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    try:
        _check(request.components)
    except Refusal as refusal:
        return refused(refusal) | {"entries": None}
    return {"error_code": 0, "error_message": None, "entries": ()}


def _check(components: Any) -> None:
    seen: set[str] = set()
    for component in components:
        kind = component.entity_type
        if not kind:
            raise Refusal(ErrorCode.INVALID_REQUEST, "a filter has an empty entity type")
        if kind in seen:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"entity type {kind} is in the filter more than once")
        if kind not in _ENTITY_TYPES:
            raise Refusal(
                ErrorCode.UNSUPPORTED_VERSION,
                f"entity type {kind[:100]!r} is not supported: use {', '.join(_ENTITY_TYPES)}",
            )
        if component.match_type not in _MATCH_TYPES:
            raise Refusal(
                ErrorCode.INVALID_REQUEST, f"match type {component.match_type} is unknown: use 0, 1 or 2"
            )
        seen.add(kind)
    if _IP in seen and len(seen) > 1:
        raise Refusal(
            ErrorCode.INVALID_REQUEST, "the entity type ip cannot be combined with user or client-id"
        )
