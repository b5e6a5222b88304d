"""The table of APIs: what is served is what registered itself here, so what is advertised cannot drift from it (A8).

Each file in this folder opens with its API's contract and registers a handler:

    @serves(19)
    def create_topics(broker, call, request, now_ms): …

With `by_client=True` the call says what the client calls itself (`call.client_id`). With `by_controller=True` the handler runs on the controller only: on any other broker the request is handed on to it.

A handler returns the answer as a dict of kio's field names (see `wire/encode.py`), or a `NoResponse`. An `Entry` is an API in one version with its reader,
encoder and handler looked up once; a version's schema is loaded when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ottla.model.limits import CLIENT_ID_BYTES_MAX, ROWS_PER_REQUEST_MAX
from ottla.model.strings import cut
from ottla.wire.decode import decode_request, request_reader
from ottla.wire.encode import response_encoder
from ottla.wire.layout import row_size_min
from ottla.wire.schema import (
    request_class,
    request_header_is_flexible,
    response_header_is_flexible,
    version_range,
)

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call

#: A response by kio's field names.
Response: TypeAlias = dict[str, Any]


class NoResponse(Enum):
    """What a handler returns instead of a response. Compared by identity."""

    #: The handler answers later, through `broker.answer(call, …)`.
    LATER = "later"
    #: The request wants no response, or was answered already through `broker.reply`.
    DONE = "done"


Result: TypeAlias = "Response | NoResponse"
Handler: TypeAlias = "Callable[[Broker, Call, Any, int], Result]"


#: What a request may weigh unless its API says otherwise: a million-item request must not become a million objects.
_REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024
#: No frame is longer: its size is an int32.
_FRAME_BYTES_MAX: Final = 2**31 - 1


class Api(NamedTuple):
    key: int
    oldest: int
    newest: int
    handler: Handler
    request_bytes_max: int | None
    #: How many rows a request may have: the items of all its arrays together.
    rows_max: int
    #: Whether only the controller can serve it.
    by_controller: bool = False
    #: Whether it wants to know what the client calls itself.
    by_client: bool = False
    #: Of an API of the controller: whether it changes metadata, so that it waits while the cluster store cannot be reached.
    changes_metadata: bool = False


APIS: dict[int, Api] = {}


def serves(
    key: int,
    *,
    request_bytes_max: int | None = _REQUEST_BYTES_MAX,
    rows_max: int = ROWS_PER_REQUEST_MAX,
    by_controller: bool = False,
    by_client: bool = False,
    changes_metadata: bool = True,
) -> Callable[[Handler], Handler]:
    """Register a handler for all versions of an API. `request_bytes_max` None: the listener's own limit.

    `rows_max`: a request with more items in its arrays closes its connection.
    `by_controller`: only the controller can answer it; whoever else gets it passes it on. Unless it says that it changes no
    metadata, it is held, within its time-out, while the cluster store cannot be reached.
    """

    def register(handler: Handler) -> Handler:
        versions = version_range(key)
        assert versions is not None and key not in APIS
        APIS[key] = Api(
            key, versions[0], versions[1], handler, request_bytes_max, rows_max, by_controller, by_client,
            by_controller and changes_metadata,
        )  # fmt: skip
        return handler

    return register


def merged(named: Iterable[tuple[str, Iterable[int]]]) -> dict[str, dict[int, None]]:
    """The partitions of a request by topic, each once, in the order in which they were named."""
    topics: dict[str, dict[int, None]] = {}
    for name, numbers in named:
        topics.setdefault(name, {}).update(dict.fromkeys(numbers))
    return topics


class Entry:
    """An API in one version, ready for use."""

    __slots__ = (
        "by_controller",
        "bytes_unchecked",
        "encode",
        "flexible_header",
        "flexible_response",
        "handler",
        "key",
        "read",
        "read_counted",
        "request_bytes_max",
        "rows_max",
        "version",
    )

    def __init__(self, api: Api, version: int) -> None:
        self.key = api.key
        self.version = version
        self.handler = api.handler
        self.request_bytes_max = api.request_bytes_max
        self.rows_max = api.rows_max
        #: A frame of at most this many bytes is within both limits, whatever is in it.
        self.bytes_unchecked = _bytes_within_limits(api, version)
        self.by_controller = api.by_controller
        self.flexible_header = request_header_is_flexible(api.key, version)
        self.flexible_response = response_header_is_flexible(api.key, version)
        self.read: Callable[[Any, int], tuple[Any, int]] = request_reader(api.key, version)
        #: The same for a longer frame: a request with too many rows is refused before it is decoded.
        self.read_counted: Callable[[Any, int], tuple[Any, int]] = request_reader(
            api.key, version, api.rows_max
        )
        self.encode: Callable[[Response], bytes] = response_encoder(api.key, version)
        if api.by_controller:
            # In the entry, so that the requests of other APIs do not pay for a look at it.
            self.read = self.read_counted = _with_its_frame(api.key, version, api.rows_max)
            self.handler = _here_or_forwarded(api.handler, changes_metadata=api.changes_metadata)
        elif api.by_client:
            self.read = self.read_counted = _with_its_frame(api.key, version, api.rows_max)
            self.handler = _with_client_id(api.handler)


def _bytes_within_limits(api: Api, version: int) -> int:
    row_bytes = row_size_min(request_class(api.key, version))
    limits = [api.request_bytes_max, None if row_bytes is None else row_bytes * api.rows_max]
    return min((limit for limit in limits if limit is not None), default=_FRAME_BYTES_MAX)


def _with_its_frame(key: int, version: int, rows_max: int) -> Callable[[Any, int], tuple[Any, int]]:
    def read(frame: Any, at: int) -> tuple[Any, int]:
        return (decode_request(key, version, frame, at, rows_max), frame), 0

    return read


def _here_or_forwarded(handler: Handler, *, changes_metadata: bool) -> Handler:
    def handle(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
        decoded, frame = request
        controlling = broker.controller_driver
        if controlling.may_decide or (controlling.is_active and not changes_metadata):
            return handler(broker, call, decoded, now_ms)
        return broker.controller_channel.forward(call, frame, decoded)

    return handle


def _with_client_id(handler: Handler) -> Handler:
    def handle(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
        decoded, frame = request
        size = int.from_bytes(frame[8:10], "big", signed=True)
        client_id = str(frame[10 : 10 + size], "utf-8", "replace") if size > 0 else ""
        call.client_id = cut(client_id, CLIENT_ID_BYTES_MAX)
        return handler(broker, call, decoded, now_ms)

    return handle


def entry_for(key: int, version: int) -> Entry | None:
    api = APIS.get(key)
    if api is None or not api.oldest <= version <= api.newest:
        return None
    return Entry(api, version)
