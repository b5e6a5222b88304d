"""Requests to the coordinator of a group or of a transactional id.

A coordinator can move, and must load its state then: these errors are retried with a new lookup. Used by
`client/admin/groups.py` and `client/admin/transactions.py`; a consumer keeps a `Coordinator`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

from ottla.client.cluster import Cluster, backoff_ms
from ottla.client.connection import Body, BrokerConnection
from ottla.client.errors import BrokerUnreachable, KafkaError, refused
from ottla.client.metadata import Node
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode

Kind = Literal["group", "transactional id"]

ATTEMPTS_MAX = 12
#: Errors that a retry may resolve.
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
    """Send a request to the coordinator, and again while one of the `rows` has a temporary error.

    Return the response and the broker.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            node, connection = await find_coordinator(cluster, kind, key)
        except BrokerUnreachable:
            # The coordinator has died, and the other brokers do not know yet.
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
        answer = await cluster.ask_any(
            ApiKey.FIND_COORDINATOR, {"key": key, "key_type": _KEY_TYPES[kind], "coordinator_keys": [key]}
        )
        row = answer.coordinators[0] if hasattr(answer, "coordinators") else answer
        code = int(row.error_code)
        if not code:
            metadata = await cluster.refresh(())
            node = metadata.nodes.get(int(row.node_id))
            if node is not None:
                return node, await cluster.connection(node)
        elif code not in MOVED:
            break
        await asyncio.sleep(backoff_ms(cluster.settings, attempt) / 1000)
    raise refused(code or ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the coordinator of {kind} {key!r}")


class Coordinator:
    """The coordinator of one group or transactional id. Concurrent callers share one lookup."""

    def __init__(self, cluster: Cluster, kind: Kind, key: str) -> None:
        self._cluster, self._kind, self._key = cluster, kind, key
        self._node: Node | None = None
        self._searching: asyncio.Task[tuple[Node, BrokerConnection]] | None = None

    async def connection(self, lane: str = "") -> BrokerConnection:
        """The connection to the coordinator. Requests that it may hold use a connection of their own (a
        lane).
        """
        node = self._node
        if node is None:
            if self._searching is None:
                self._searching = asyncio.get_running_loop().create_task(
                    find_coordinator(self._cluster, self._kind, self._key)
                )
                self._searching.add_done_callback(self._found)
            found = await asyncio.shield(self._searching)
            node = self._node = found[0]
        return await self._cluster.connection(node, lane)

    def _found(self, search: asyncio.Task[tuple[Node, BrokerConnection]]) -> None:
        self._searching = None
        if not search.cancelled():
            search.exception()

    def forget(self) -> None:
        """Look the coordinator up again: it has moved or does not answer."""
        self._node = None

    async def request(
        self,
        api_key: int,
        body: Body,
        *,
        lane: str = "",
        version_max: int | None = None,
        timeout_ms: int | None = None,
    ) -> tuple[Any, str]:
        """Its response and its address. An unreachable coordinator is looked up again."""
        try:
            connection = await self.connection(lane)
            answer = await connection.request(api_key, body, version_max=version_max, timeout_ms=timeout_ms)
        except KafkaError as error:
            if error.retriable:
                self.forget()
            raise
        return answer, connection.address

    async def close(self) -> None:
        if self._searching is not None:
            self._searching.cancel()
            await asyncio.gather(self._searching, return_exceptions=True)


async def ask_every_broker(
    cluster: Cluster, api_key: int, body: Body, what: str, *, version_min: int = 0
) -> dict[Node, Any]:
    """Ask every broker to list what it coordinates. Each knows only its own part."""
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
