"""Scripted brokers: they send the responses of a test, for errors that a real broker sends only in a broken
cluster.

They speak the protocol through `wire/` on real sockets, and serve ApiVersions, Metadata, ListOffsets and
Fetch. Metadata lists every started broker, and one topic of one partition, led by `leader`.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from ottla.wire.decode import decode_request
from ottla.wire.encode import response_encoder
from ottla.wire.frames import after_tags
from ottla.wire.schema import request_header_is_flexible, response_header_is_flexible, version_range

FETCH, LIST_OFFSETS, METADATA, API_VERSIONS = 1, 2, 3, 18
TOPIC = "t"

#: Given the request and how many came before it: what the partition says, or a whole answer if it has "responses".
Script = Callable[[Any, int], dict[str, Any] | Awaitable[dict[str, Any]]]


class ScriptedCluster:
    """Use `await start(node id, script)` for each broker, `await close()` at the end."""

    def __init__(self) -> None:
        self.leader = 1
        self.leader_epoch = 1
        self.topic_id = bytes(range(16))
        self.fetches: list[tuple[int, Any]] = []
        self.metadata_requests = 0
        self.ports: dict[int, int] = {}
        #: Brokers that metadata does not tell of.
        self.hidden: set[int] = set()
        self._scripts: dict[int, Script] = {}
        self._servers: list[asyncio.Server] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self, node_id: int, script: Script) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.append(writer)
            try:
                while True:
                    size = struct.unpack(">i", await reader.readexactly(4))[0]
                    await self._answer(node_id, memoryview(await reader.readexactly(size)), writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self._servers.append(server)
        self._scripts[node_id] = script
        self.ports[node_id] = server.sockets[0].getsockname()[1]
        return f"127.0.0.1:{self.ports[node_id]}"

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for writer in self._writers:
            writer.close()

    async def _answer(self, node_id: int, frame: memoryview, writer: asyncio.StreamWriter) -> None:
        api_key, version, correlation_id, name_bytes = struct.unpack_from(">hhih", frame)
        start = 10 + max(name_bytes, 0)
        if request_header_is_flexible(api_key, version):
            start = after_tags(frame, start)
        body = self._body(node_id, api_key, decode_request(api_key, version, frame, start))
        told = body if isinstance(body, dict) else await body
        tags = b"\0" if response_header_is_flexible(api_key, version) else b""
        answer = struct.pack(">i", correlation_id) + tags + response_encoder(api_key, version)(told)
        writer.write(struct.pack(">i", len(answer)) + answer)

    def _body(self, node_id: int, api_key: int, request: Any) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        if api_key == API_VERSIONS:
            ranges = {key: version_range(key) for key in (FETCH, LIST_OFFSETS, METADATA, API_VERSIONS)}
            keys = [
                {"api_key": key, "min_version": found[0], "max_version": found[1]}
                for key, found in ranges.items()
                if found
            ]
            return {"error_code": 0, "api_keys": keys, "throttle_time": 0}
        if api_key == METADATA:
            self.metadata_requests += 1
            return self._metadata()
        if api_key == LIST_OFFSETS:
            row = {"partition_index": 0, "error_code": 0, "timestamp": -1, "offset": 0, "leader_epoch": 0}
            return {"throttle_time": 0, "topics": [{"name": TOPIC, "partitions": [row]}]}
        return self._fetch(node_id, request)

    def _metadata(self) -> dict[str, Any]:
        partition = {
            "error_code": 0,
            "partition_index": 0,
            "leader_id": self.leader,
            "leader_epoch": self.leader_epoch,
            "replica_nodes": [1, 2],
            "isr_nodes": [1, 2],
            "offline_replicas": [],
        }
        topic = {"error_code": 0, "name": TOPIC, "topic_id": self.topic_id, "is_internal": False}
        return {
            "throttle_time": 0,
            "brokers": [
                {"node_id": number, "host": "127.0.0.1", "port": port, "rack": None}
                for number, port in self.ports.items()
                if number not in self.hidden
            ],
            "cluster_id": "scripted",
            "controller_id": 1,
            "topics": [{**topic, "partitions": [partition], "topic_authorized_operations": 0}],
        }

    async def _fetch(self, node_id: int, request: Any) -> dict[str, Any]:
        before = len(self.fetches)
        self.fetches.append((node_id, request))
        told = self._scripts[node_id](request, before)
        said = told if isinstance(told, dict) else await told
        whole = {"throttle_time": 0, "error_code": 0, "session_id": 0, "responses": []}
        if "error_code" in said and "partition" not in said:
            return {**whole, **said}
        row = {
            "partition_index": 0,
            "error_code": 0,
            "high_watermark": 10,
            "last_stable_offset": 10,
            "log_start_offset": 0,
            "aborted_transactions": None,
            "preferred_read_replica": -1,
            "records": None,
            **said.get("partition", {}),
        }
        topic = {"topic": TOPIC, "topic_id": self.topic_id, "partitions": [row]}
        return {**whole, "responses": [topic], **{k: v for k, v in said.items() if k != "partition"}}


async def nothing(_request: Any, _before: int) -> dict[str, Any]:
    """As a broker at the end of a log: no answer for a while, then an empty one."""
    await asyncio.sleep(0.2)
    return {"partition": {}}
