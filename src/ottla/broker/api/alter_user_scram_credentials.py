"""AlterUserScramCredentials (51): SCRAM credentials to set or delete; each user is refused with UNSUPPORTED_VERSION: there is no SASL yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, serves
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


_MESSAGE = (
    "This broker does not authenticate clients yet, so it stores no SCRAM credentials: nothing was changed."
)


@serves(51)
def alter_user_scram_credentials(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    users = dict.fromkeys(each.name for each in (*request.deletions, *request.upsertions))
    refused = {"error_code": ErrorCode.UNSUPPORTED_VERSION, "error_message": _MESSAGE}
    return {"results": [{"user": user, **refused} for user in users]}
