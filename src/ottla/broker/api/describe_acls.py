"""DescribeAcls (29): access control lists; refused with SECURITY_DISABLED, as on a Kafka broker without an authorizer.

MirrorMaker asks for them by default and goes on when it reads that error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, serves
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


#: The answer of all three ACL APIs, in Kafka's own words.
NO_AUTHORIZER = "No Authorizer is configured on the broker."


@serves(29)
def describe_acls(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    return {
        "error_code": ErrorCode.SECURITY_DISABLED,
        "error_message": NO_AUTHORIZER,
        "resources": (),
    }
