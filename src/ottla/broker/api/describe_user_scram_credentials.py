"""DescribeUserScramCredentials (50): SCRAM credentials of users; there are none, so all users together are an empty list.

Errors by user that is named: RESOURCE_NOT_FOUND, and DUPLICATE_RESOURCE for one that is named twice.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, serves
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


@serves(50)
def describe_user_scram_credentials(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    times = Counter(user.name for user in request.users or ())
    return {
        "error_code": 0,
        "error_message": None,
        "results": [_result(name, count) for name, count in times.items()],
    }


def _result(name: str, times: int) -> dict[str, Any]:
    # Kafka's own words.
    if times > 1:
        code = ErrorCode.DUPLICATE_RESOURCE
        message = "Cannot describe SCRAM credentials for the same user twice in a single request: "
    else:
        code = ErrorCode.RESOURCE_NOT_FOUND
        message = "Attempt to describe a user credential that does not exist: "
    return {"user": name, "error_code": code, "error_message": message + name[:249], "credential_infos": ()}
