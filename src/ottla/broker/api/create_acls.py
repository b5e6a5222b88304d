"""CreateAcls (30): new access control lists; each is refused with SECURITY_DISABLED, since there is no authorizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.describe_acls import NO_AUTHORIZER
from ottla.broker.api.shared.api_table import Response, serves
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


@serves(30)
def create_acls(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    refused = {"error_code": ErrorCode.SECURITY_DISABLED, "error_message": NO_AUTHORIZER}
    return {"results": [refused] * len(request.creations)}
