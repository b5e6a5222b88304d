"""Pools SDK clients in Spark's Python workers: workers are reused, and connecting costs more than a fetch.

A client has one user at a time. If its user raises an exception, the client is closed instead of returned to
the pool.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from ottla.client.consumer.settings import ConsumerConfig
from ottla.client.errors import SettingError
from ottla.client.producer.settings import ProducerConfig
from ottla.client.properties import settings_from
from ottla.client.settings import ClientConfig, bootstrap_addresses
from ottla.spark.options import KAFKA, OptionError

if TYPE_CHECKING:
    from ottla.client.admin.sync import Admin
    from ottla.client.consumer.sync import Consumer
    from ottla.client.producer.sync import Producer

#: Beyond this number the longest-idle clients are closed. A worker runs one task at a time.
_IDLE_MAX: Final = 8
_idle: dict[tuple[object, ...], list[Any]] = {}
_lock = threading.Lock()

Lent = TypeVar("Lent")


def settings_for(kafka: Mapping[str, str], kind: type[ClientConfig]) -> dict[str, str]:
    """Select the settings for one kind of client: drop those that only another kind of client has.

    Settings that no client has are kept, so that the client rejects them.
    """
    known = {name.name for name in dataclasses.fields(kind)}
    others = {
        name.name for each in (ConsumerConfig, ProducerConfig) for name in dataclasses.fields(each)
    } - known
    return {name: value for name, value in kafka.items() if name.replace(".", "_") not in others}


def check_settings(kafka: Mapping[str, str], kind: type[ClientConfig]) -> None:
    """Raise `OptionError` if a setting is invalid for this kind of client."""
    try:
        bootstrap_addresses(kafka["bootstrap.servers"])
        settings_from(kafka, kind)
    except SettingError as error:
        raise OptionError(f"options {KAFKA}*: {error}") from None


def consumer(kafka: Mapping[str, str], **settings: Any) -> contextlib.AbstractContextManager[Consumer]:
    """Lend a consumer with these options. The caller's `settings` override them."""
    from ottla.client.consumer.sync import Consumer

    return _lent(Consumer, ConsumerConfig, kafka, settings)


def admin(kafka: Mapping[str, str], **settings: Any) -> contextlib.AbstractContextManager[Admin]:
    from ottla.client.admin.sync import Admin

    return _lent(Admin, ClientConfig, kafka, settings)


def producer(kafka: Mapping[str, str], **settings: Any) -> contextlib.AbstractContextManager[Producer]:
    from ottla.client.producer.sync import Producer

    return _lent(Producer, ProducerConfig, kafka, settings)


@contextlib.contextmanager
def _lent(
    make: type[Lent], kind: type[ClientConfig], kafka: Mapping[str, str], own: Mapping[str, Any]
) -> Iterator[Lent]:
    key = (make, *sorted(kafka.items()), *sorted(own.items()))
    with _lock:
        waiting = _idle.get(key)
        client: Any = waiting.pop() if waiting else None
        if not waiting:
            _idle.pop(key, None)
    if client is None:
        settings = {"client_id": "ottla-spark", **settings_from(kafka, kind), **own}
        client = cast("Any", make)(kafka["bootstrap.servers"], **settings)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    with _lock:
        _idle.setdefault(key, []).append(client)
        closing = []
        if sum(map(len, _idle.values())) > _IDLE_MAX:
            eldest = next(iter(_idle))
            closing.append(_idle[eldest].pop(0))
            if not _idle[eldest]:
                del _idle[eldest]
    for each in closing:
        each.close()
