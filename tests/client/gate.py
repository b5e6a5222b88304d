"""A proxy with TLS and SASL in front of a broker that has neither; it lets authenticated clients through.

It behaves like Apache Kafka's listeners: before and during authentication only ApiVersions, SaslHandshake and
SaslAuthenticate are allowed; other requests close the connection. Requests pass one at a time.
"""

import asyncio
import base64
import hashlib
import hmac
import socket
import ssl
import struct
import threading
from collections.abc import Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ottla.server.embedded import Broker
from ottla.wire.decode import decode_request, decode_response
from ottla.wire.encode import response_encoder
from ottla.wire.schema import request_header_is_flexible, response_header_is_flexible

API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
REFUSED = 58


@dataclass
class Sasl:
    mechanism: str
    users: dict[str, str] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)
    session_ms: int = 0
    #: How often somebody was let in.
    passed: int = 0

    def converse(self) -> Generator[tuple[int, bytes], bytes, None]:
        """Fed the client's messages with `send`; gives an error code and the server's message, and ends after the last."""
        if self.mechanism == "PLAIN":
            _, name, password = (yield 0, b"").split(b"\0")
            yield (0 if self.users.get(name.decode()) == password.decode() else REFUSED), b""
        elif self.mechanism == "OAUTHBEARER":
            token = (yield 0, b"").split(b"Bearer ")[1].split(b"\x01")[0].decode()
            if token in self.tokens:
                yield 0, b""
            else:
                yield 0, b'{"status":"invalid_token"}'
                yield REFUSED, b""
        else:
            yield from self._scram(self.mechanism.removeprefix("SCRAM-").replace("-", "").lower())

    def _scram(self, digest: str) -> Generator[tuple[int, bytes], bytes, None]:
        bare = (yield 0, b"").decode().removeprefix("n,,")
        name, nonce = bare.removeprefix("n=").split(",r=")
        first = f"r={nonce}more,s=c2FsdA==,i=4096"
        final = (yield 0, first.encode()).decode()
        without_proof, _, proof = final.rpartition(",p=")
        salted = hashlib.pbkdf2_hmac(digest, self.users.get(name, "").encode(), b"salt", 4096)
        message = f"{bare},{first},{without_proof}".encode()
        stored = hashlib.new(digest, hmac.digest(salted, b"Client Key", digest)).digest()
        signature = hmac.digest(stored, message, digest)
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.new(digest, key).digest() != stored:
            yield REFUSED, b""
        yield (
            0,
            b"v="
            + base64.b64encode(hmac.digest(hmac.digest(salted, b"Server Key", digest), message, digest)),
        )


class Gate:
    def __init__(self, *, tls: ssl.SSLContext | None = None, sasl: Sasl | None = None) -> None:
        self.sasl = sasl
        self.connections = 0
        self.target: tuple[str, int] = ("", 0)
        #: By API key: answers to give in place of the broker's, one each time.
        self.instead: dict[int, list[dict[str, Any]]] = {}
        #: By API key: how many more requests are answered; the gate withholds the answers after that.
        self.answers_left: dict[int, int] = {}
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    @property
    def open_now(self) -> int:
        return len(self._tasks)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self.drop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def drop(self) -> None:
        """Cut all connections."""

        async def cut() -> None:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._run(cut())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        broker: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            broker = await asyncio.open_connection(*self.target)
            await self._let_through(reader, writer, *broker)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for each in (writer, broker[1] if broker else None):
                if each is not None:
                    each.transport.abort()

    async def _let_through(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        from_broker: asyncio.StreamReader,
        to_broker: asyncio.StreamWriter,
    ) -> None:
        conversation = None
        inside = self.sasl is None
        while True:
            request = await _frame(reader)
            key, version, correlation_id = struct.unpack_from(">hhi", request)
            if key in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
                assert self.sasl is not None
                start = 10 + max(struct.unpack_from(">h", request, 8)[0], 0)
                asked = decode_request(
                    key, version, request, start + request_header_is_flexible(key, version)
                )
                if key == SASL_HANDSHAKE:
                    known = asked.mechanism == self.sasl.mechanism
                    answer = {"error_code": 0 if known else 33, "mechanisms": [self.sasl.mechanism]}
                    conversation, inside = self.sasl.converse(), False
                    next(conversation)
                else:
                    assert conversation is not None
                    code, message = conversation.send(asked.auth_bytes)
                    inside = not code and not message.startswith((b"r=", b"{"))
                    self.sasl.passed += inside
                    answer = {
                        "error_code": code, "error_message": "Authentication failed: bad credentials" if code else None,
                        "auth_bytes": message, "session_lifetime": self.sasl.session_ms,
                    }  # fmt: skip
                header = struct.pack(">i", correlation_id) + b"\0" * response_header_is_flexible(key, version)
                body = header + response_encoder(key, version)(answer)
            elif self.instead.get(key):
                header = struct.pack(">i", correlation_id) + b"\0" * response_header_is_flexible(key, version)
                body = header + response_encoder(key, version)(self.instead[key].pop(0))
            elif key == API_VERSIONS or inside:
                to_broker.write(struct.pack(">i", len(request)) + request)
                body = await _frame(from_broker)
                if key == API_VERSIONS and self.sasl is not None:
                    body = body[:4] + _with_sasl(version, body[4:])
            else:
                return
            if key in self.answers_left:
                if not self.answers_left[key]:
                    await asyncio.Event().wait()
                self.answers_left[key] -= 1
            writer.write(struct.pack(">i", len(body)) + body)
            await writer.drain()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])


def _with_sasl(version: int, body: bytes) -> bytes:
    served = decode_response(API_VERSIONS, version, body, 0)
    rows = [(int(row.api_key), int(row.min_version), int(row.max_version)) for row in served.api_keys]
    rows += [(SASL_HANDSHAKE, 0, 1), (SASL_AUTHENTICATE, 0, 2)]
    return response_encoder(API_VERSIONS, version)(
        {
            "error_code": 0,
            "api_keys": [{"api_key": k, "min_version": a, "max_version": b} for k, a, b in rows],
        }
    )


@contextmanager
def gated(gate: Gate, config: Mapping[str, str] = MappingProxyType({})) -> Iterator[Gate]:
    """A broker behind the gate, which it advertises."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        gate.target = probe.getsockname()
    try:
        advertised = {"advertised.listeners": f"PLAINTEXT://{gate.address}"}
        with Broker(port=gate.target[1], config={**advertised, **config}):
            yield gate
    finally:
        gate.close()
