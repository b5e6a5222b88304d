"""What the APIs that change metadata share: answer once the records are in the image, or say why they are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.table import SILENT, WAIT, Response
from ottla.model.errors import ErrorCode, Refusal

if TYPE_CHECKING:
    from ottla.broker.connection import Call
    from ottla.broker.core import Broker
    from ottla.controller.records import Record


def answer_after(broker: Broker, call: Call, records: list[Record], response: Response) -> Response:
    """The response now if there is nothing to write, else once the records are committed."""
    if not records:
        return SILENT if broker.slices.answer_built(call, response) else WAIT

    def done(error: str | None) -> None:
        if error is not None:
            _fail(response, error)
        broker.slices.answer_built(call, response)

    broker.propose(records, done)
    return WAIT


def refused(refusal: Refusal) -> dict[str, Any]:
    return {"error_code": refusal.code, "error_message": refusal.message}


def _fail(response: Response, error: str) -> None:
    """Every row that was to succeed did not: the metadata log could not be written."""
    for rows in response.values():
        if isinstance(rows, list):
            for row in rows:
                if row.get("error_code") == 0:
                    row.update(error_code=ErrorCode.KAFKA_STORAGE_ERROR, error_message=error)
