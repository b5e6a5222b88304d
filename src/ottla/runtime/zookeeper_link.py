"""The connection to ZooKeeper: kazoo's requests as futures of the event loop, its states as calls.

kazoo runs one thread for its connection, and by default one more for responses and one for watches, which can
reorder events. Here the connection thread hands all events to the loop in the order in which the server sent
them. The handler below runs kazoo's callbacks in that thread, and each callback only posts to the loop.

Nothing here blocks. Paths are given without the chroot, which is created if it is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import EventType, KazooState, WatchedEvent
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from ottla.config.broker import BrokerConfig
from ottla.security.cluster_secret import SECRET_BYTES

#: Errors of a request whose connection ended: it is unknown whether the request was executed.
UNKNOWN_OUTCOME: Final = (ConnectionLoss, SessionExpiredError, ConnectionClosedError)

#: Errors of a multi that lost a race.
_RACES: Final = (BadVersionError, NodeExistsError, NoNodeError)

#: Upper bound on closing a session.
_CLOSE_S: Final = 2.0

# The store logs connection problems. kazoo's own log is available under this name.
_LOG: Final = logging.getLogger("ottla.zookeeper")
_LOG.addHandler(logging.NullHandler())


_PASSWORD_CHARS_MIN: Final = 4
#: A cluster secret in a request or response, and the password of a session.
_CLUSTER_SECRET: Final = re.compile(rf"[0-9a-f]{{{2 * SECRET_BYTES}}}")
_SESSION_PASSWORD: Final = re.compile(r"""(passwd(?:=|: ))b?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")
#: Fields of ZookeeperSettings that must not be logged.
_SECRETS: Final = frozenset(("digest", "keystore_password"))


class ZookeeperSettings(NamedTuple):
    """Settings of the ZooKeeper client. Files are PEM."""

    #: HOST:PORT,HOST:PORT/chroot, as in Kafka's zookeeper.connect
    connect: str
    session_timeout_ms: int = 18_000
    connection_timeout_ms: int = 18_000
    #: "user:password" of ZooKeeper's digest scheme
    digest: str = ""
    #: Whether new znodes belong to that user only.
    set_acl: bool = False
    tls: bool = False
    #: Trusted certificates
    truststore: str | None = None
    #: Certificate and private key of this broker, in one file
    keystore: str | None = None
    keystore_password: str | None = None
    check_hostname: bool = True

    def __repr__(self) -> str:
        shown = (
            f"{name}={'[hidden]' if name in _SECRETS and value else repr(value)}"
            for name, value in zip(self._fields, self, strict=True)
        )
        return f"ZookeeperSettings({', '.join(shown)})"

    @staticmethod
    def from_config(config: BrokerConfig) -> ZookeeperSettings:
        """The settings of a broker with zookeeper.connect."""
        assert config.zookeeper_connect is not None
        session_timeout_ms = config.zookeeper_session_timeout_ms
        return ZookeeperSettings(
            connect=config.zookeeper_connect,
            session_timeout_ms=session_timeout_ms,
            connection_timeout_ms=config.zookeeper_connection_timeout_ms or session_timeout_ms,
            digest=config.zookeeper_digest or "",
            set_acl=config.zookeeper_set_acl,
            tls=config.zookeeper_ssl_client_enable,
            truststore=config.zookeeper_ssl_truststore_location,
            keystore=config.zookeeper_ssl_keystore_location,
            keystore_password=config.zookeeper_ssl_keystore_password,
            check_hostname=config.zookeeper_ssl_endpoint_identification_algorithm == "HTTPS",
        )

    def tls_context(self) -> ssl.SSLContext:
        """Raises OSError if a file is missing or invalid."""
        context = ssl.create_default_context(cafile=self.truststore)
        context.check_hostname = self.check_hostname
        if self.keystore is not None:
            context.load_cert_chain(self.keystore, password=self.keystore_password)
        return context

    @property
    def hosts(self) -> str:
        return self.connect.partition("/")[0]

    @property
    def chroot(self) -> str:
        path = self.connect.partition("/")[2].strip("/")
        return f"/{path}" if path else ""


class _Trouble(logging.Handler):
    """Keeps the reason of the last failed connect, which kazoo only logs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("Connection "):
            self.last = text.partition(": ")[2].removeprefix("socket connection error: ")


class _Hidden(logging.Filter):
    """Removes secrets from kazoo's log, whose debug lines show each request and response.

    Secrets are the digest password, the cluster secret, and the session password, with which another client
    could take over the session.
    """

    def __init__(self, digest: str) -> None:
        super().__init__()
        password = digest.partition(":")[2]
        # A short password could be part of any word.
        hidden = [digest, password] if len(password) >= _PASSWORD_CHARS_MIN else [digest]
        hidden = [each for each in hidden if each]
        # Plain and as in a repr, the longest first.
        texts = {text for each in hidden for text in (each, repr(each)[1:-1])}
        self._secrets = sorted(texts, key=len, reverse=True)

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        hidden = _SESSION_PASSWORD.sub(r"\1[hidden]", _CLUSTER_SECRET.sub("[hidden]", text))
        for secret in self._secrets:
            hidden = hidden.replace(secret, "[hidden]")
        if hidden != text:
            record.msg, record.args = hidden, ()
        return True


class _AtOnce:
    """Replaces kazoo's queues: runs a function at once, in the calling thread."""

    def put(self, function: Callable[[], object]) -> None:
        function()


class _LoopHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's handler without its two worker threads, and with a connect that leaks no socket."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._tls = tls
        self.callback_queue = self.completion_queue = _AtOnce()

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def create_connection(
        self,
        address: tuple[str, int],
        hostname: str | None = None,
        timeout: float | None = None,
        **_options: Any,
    ) -> socket.socket:
        plain = socket.create_connection(address, timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return plain if self._tls is None else self._tls.wrap_socket(plain, server_hostname=hostname)


class Link:
    """A ZooKeeper client. `on_state(state)` is called with kazoo's CONNECTED, SUSPENDED and LOST."""

    def __init__(
        self,
        settings: ZookeeperSettings,
        loop: asyncio.AbstractEventLoop,
        on_state: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._on_state = on_state
        self._root = settings.chroot
        handler = _LoopHandler(settings.tls_context() if settings.tls else None)
        self._trouble = _Trouble()
        logger = logging.Logger("ottla.zookeeper")  # noqa: LOG001  # of this link alone
        logger.parent = _LOG
        logger.addHandler(self._trouble)
        logger.addFilter(_Hidden(settings.digest))
        self._client = KazooClient(
            # kazoo gives each connect the session timeout divided by the number of servers. With one server,
            # one attempt while it starts could use up the session timeout, so it is listed three times.
            hosts=settings.hosts if "," in settings.hosts else ",".join([settings.hosts] * 3),
            timeout=settings.session_timeout_ms / 1000,
            handler=handler,
            logger=logger,
            auth_data={("digest", settings.digest)} if settings.digest else None,
            default_acl=CREATOR_ALL_ACL if settings.set_acl else None,
            # kazoo's default backoff grows to an hour.
            connection_retry=KazooRetry(
                max_tries=-1, delay=0.05, backoff=1.5, max_delay=0.5, sleep_func=handler.sleep_func
            ),
        )
        self._client.add_listener(self._state_changed)
        #: The session of the last reported connection, or 0.
        self.session = 0

    # --- start and close ------------------------------------------------------------------------------------

    def start(self) -> None:
        self._client.start_async()

    async def close(self) -> None:
        """End the session, which deletes its ephemeral znodes at once.

        A server that does not answer is not waited for: the session then expires.
        """
        closed = self._loop.create_future()

        def stop() -> None:
            # Waits for kazoo's thread, which waits for the server.
            with contextlib.suppress(KazooException):
                self._client.stop()
                self._client.close()
            self._post(closed.set_result, None)

        threading.Thread(target=stop, name="close ZooKeeper", daemon=True).start()
        await asyncio.wait([closed], timeout=_CLOSE_S)

    @property
    def trouble(self) -> str:
        """The reason of the last failed connect, or an empty text."""
        return self._trouble.last

    def _state_changed(self, state: str) -> None:
        client_id = self._client.client_id
        self._post(self._report_state, state, client_id[0] if client_id else 0)

    def _report_state(self, state: str, session: int) -> None:
        if state != KazooState.SUSPENDED:
            self.session = session
        self._on_state(state)

    def _post(self, function: Callable[..., object], *arguments: object) -> None:
        # RuntimeError: the loop was closed before the connection.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    # --- requests -------------------------------------------------------------------------------------------

    def get(self, path: str, watch: Callable[[], object] | None = None) -> asyncio.Future[Any]:
        """(data, stat), or NoNodeError; the watch is set only if the znode exists."""
        return self._future(self._client.get_async(self._root + path, watch=self._watcher(watch)))

    def exists(self, path: str, watch: Callable[[], object] | None = None) -> asyncio.Future[Any]:
        """The stat, or None; the watch is set in both cases."""
        return self._future(self._client.exists_async(self._root + path, watch=self._watcher(watch)))

    def children(self, path: str, watch: Callable[[], object] | None = None) -> asyncio.Future[Any]:
        return self._future(self._client.get_children_async(self._root + path, watch=self._watcher(watch)))

    def sync(self) -> asyncio.Future[Any]:
        """Done when our server has applied all earlier writes of the ensemble."""
        return self._future(self._client.sync_async(self._root or "/"))

    def multi(self, operations: Sequence[tuple[Any, ...]]) -> asyncio.Future[Any]:
        """Execute all of these operations or none; returns their results in order, exceptions if any failed.

        ("check", path, version), ("set", path, data, version), ("create", path, data), ("ephemeral", path,
        data), ("delete", path)
        """
        transaction = self._client.transaction()
        for kind, name, *rest in operations:
            path = self._root + name
            if kind == "check":
                transaction.check(path, rest[0])
            elif kind == "set":
                transaction.set_data(path, rest[0], rest[1])
            elif kind == "delete":
                transaction.delete(path)
            else:
                transaction.create(path, rest[0], ephemeral=kind == "ephemeral")
        return self._future(transaction.commit_async())

    async def commit(self, operations: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Like `multi`, but raises the cause of a failure."""
        results: list[Any] = await self.multi(operations)
        if not succeeded(results):
            raise cause(results)
        return results

    async def ensure(self, znodes: Sequence[tuple[str, bytes]]) -> None:
        """Create the missing ones of these znodes, and the chroot.

        Parents of the chroot are open to everybody, because clusters of other users may be beside this one.
        """
        parts = self._root.split("/")[1:]
        above = [("/" + "/".join(parts[: count + 1]), b"") for count in range(len(parts))]
        for path, data in [*above, *((self._root + path, data) for path, data in znodes)]:
            # Checked first: a user without write access can still use existing znodes.
            if await self._future(self._client.exists_async(path)) is None:
                acl = OPEN_ACL_UNSAFE if len(path) < len(self._root) else None
                with contextlib.suppress(NodeExistsError):
                    await self._future(self._client.create_async(path, data, acl=acl))

    def _future(self, result: Any) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        result.rawlink(lambda done: self._post(_resolve, future, done))
        return future

    def _watcher(self, watch: Callable[[], object] | None) -> Callable[[WatchedEvent], None] | None:
        if watch is None:
            return None

        def fired(event: WatchedEvent) -> None:
            # NONE means that the watch ended with its connection, which `on_state` reports as well.
            if event.type != EventType.NONE:
                self._post(watch)

        return fired


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return  # cancelled
    if result.exception is None:
        future.set_result(result.value)
    else:
        future.set_exception(result.exception)
        # A cancelled caller never retrieves the exception: suppress asyncio's warning.
        future.exception()


def succeeded(results: Sequence[Any]) -> bool:
    """Whether a multi was executed."""
    return not any(isinstance(result, Exception) for result in results)


def cause(results: Sequence[Any]) -> Exception:
    """The result of a failed multi that has the cause; the others were rolled back."""
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
            return result
    raise AssertionError("a multi failed without a cause")


def raise_unless_race(results: Sequence[Any]) -> None:
    """Ignore a lost race, which the next attempt sees; raise any other error, which would repeat."""
    if not succeeded(results) and not isinstance(why := cause(results), _RACES):
        raise why


def in_words(error: Exception) -> str:
    if isinstance(error, NoAuthError):
        return "not allowed: the znodes belong to another user; check zookeeper.digest and zookeeper.set.acl"
    return str(error) or type(error).__name__
