"""DeleteAcls (31): access control lists to delete; each filter is refused with SECURITY_DISABLED, since there is no authorizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.describe_acls import NO_AUTHORIZER
from ottla.broker.api.shared.api_table import Response, serves
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


@serves(31)
def delete_acls(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    refused = {
        "error_code": ErrorCode.SECURITY_DISABLED, "error_message": NO_AUTHORIZER, "matching_acls": (),
    }  # fmt: skip
    return {"filter_results": [refused] * len(request.filters)}
