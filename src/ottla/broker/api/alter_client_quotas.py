"""AlterClientQuotas (49): quotas to set or remove; each entity is refused with UNSUPPORTED_VERSION, since quotas are not enforced yet.

Accepting a quota that nothing enforces would look like protection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, serves
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


_MESSAGE = "This broker does not enforce client quotas yet: nothing was changed."


@serves(49)
def alter_client_quotas(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    return {
        "entries": [
            {
                "error_code": ErrorCode.UNSUPPORTED_VERSION,
                "error_message": _MESSAGE,
                "entity": [
                    {"entity_type": each.entity_type, "entity_name": each.entity_name}
                    for each in entry.entity
                ],
            }
            for entry in request.entries
        ]
    }
