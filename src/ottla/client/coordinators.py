"""Requests to the coordinator of a group or of a transactional id.

A coordinator may move, and loads what it coordinates when it has: who hears so looks for it again. Used by `client/admin/groups.py` and
`client/admin/transactions.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

from ottla.client.cluster import Cluster, backoff_ms
from ottla.client.connection import Body, BrokerConnection
from ottla.client.errors import BrokerUnreachable, refused
from ottla.client.metadata import Node
from ottla.model.errors import ErrorCode

Kind = Literal["group", "transactional id"]

FIND_COORDINATOR = 10
ATTEMPTS_MAX = 12
#: The answers that another attempt may change.
MOVED: Final = frozenset(
    (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
)
_KEY_TYPES: Final[dict[Kind, int]] = {"group": 0, "transactional id": 1}


async def ask_coordinator(
    cluster: Cluster,
    kind: Kind,
    key: str,
    api_key: int,
    body: Body,
    rows: Callable[[Any], Iterable[Any]],
    *,
    version_max: int | None = None,
    passing: frozenset[ErrorCode] = MOVED,
) -> tuple[Any, Node]:
    """Ask the coordinator; while one of the `rows` of its answer has an error that passes, ask again. The answer, and whose it is."""
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            node, connection = await find_coordinator(cluster, kind, key)
        except BrokerUnreachable:
            # It has died, and the others do not know yet.
            if attempt == ATTEMPTS_MAX:
                raise
        else:
            answer = await connection.request(api_key, body, version_max=version_max)
            if attempt == ATTEMPTS_MAX or not any(int(row.error_code) in passing for row in rows(answer)):
                return answer, node
        await asyncio.sleep(backoff_ms(cluster.settings, attempt) / 1000)
    raise AssertionError("the last attempt returns or raises")


async def find_coordinator(cluster: Cluster, kind: Kind, key: str) -> tuple[Node, BrokerConnection]:
    code = 0
    for attempt in range(1, ATTEMPTS_MAX + 1):
        connection = await cluster.any_connection()
        answer = await connection.request(
            FIND_COORDINATOR, {"key": key, "key_type": _KEY_TYPES[kind], "coordinator_keys": [key]}
        )
        row = answer.coordinators[0] if hasattr(answer, "coordinators") else answer
        code = int(row.error_code)
        if not code:
            metadata = await cluster.refresh(())
            node = metadata.nodes.get(int(row.node_id))
            if node is not None:
                return node, await cluster.connection(node)
        await asyncio.sleep(backoff_ms(cluster.settings, attempt) / 1000)
    raise refused(code or ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the coordinator of {kind} {key!r}")


async def ask_every_broker(
    cluster: Cluster, api_key: int, body: Body, what: str, *, version_min: int = 0
) -> dict[Node, Any]:
    """The answers of all brokers when they are asked to list what they coordinate; each knows its own alone."""
    metadata = await cluster.refresh(())
    answers: dict[Node, Any] = {}
    for node in metadata.nodes.values():
        connection = await cluster.connection(node)
        if connection.version_for(api_key) < version_min:
            raise refused(
                ErrorCode.UNSUPPORTED_VERSION, what, message="the broker is too old for this filter",
                broker=connection.address,
            )  # fmt: skip
        for attempt in range(1, ATTEMPTS_MAX + 1):
            answer = await connection.request(api_key, body)
            if int(answer.error_code) not in MOVED or attempt == ATTEMPTS_MAX:
                break
            await asyncio.sleep(backoff_ms(cluster.settings, attempt) / 1000)
        if answer.error_code:
            raise refused(int(answer.error_code), what, broker=connection.address)
        answers[node] = answer
    return answers
