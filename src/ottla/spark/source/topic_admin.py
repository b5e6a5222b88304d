"""Requests partitions and offsets of the topics from the brokers. It decides nothing.

Used where queries are planned, in at most one Python process per query. The client is kept between requests.
"""

from __future__ import annotations

import dataclasses
import difflib
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeVar

from ottla.client.consumer.settings import ConsumerConfig
from ottla.client.errors import KafkaError, SeveralFailed, TopicNotFound
from ottla.client.metadata import TopicInfo, TopicPartition
from ottla.client.offsets import EARLIEST, LATEST
from ottla.client.properties import settings_from
from ottla.client.settings import ClientConfig
from ottla.spark import clients
from ottla.spark.options import OptionError
from ottla.spark.source.offsets import Offsets
from ottla.spark.source.options import SourceOptions
from ottla.spark.source.read_plan import Log

if TYPE_CHECKING:
    from ottla.client.admin.sync import Admin

Answer = TypeVar("Answer")


class TopicAdmin:
    """Requests metadata of the selected topics. Failed requests are retried as the options say."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        known = {field.name for field in dataclasses.fields(ClientConfig)}
        settings = settings_from(options.kafka, ConsumerConfig)
        self._settings = {name: value for name, value in settings.items() if name in known}

    def partitions(self) -> list[TopicPartition]:
        """The partitions to read. Raises `OptionError` for a missing topic, with similar names."""
        return self._asked(self._partitions, missing_is_error=True)

    def partitions_left(self) -> list[TopicPartition]:
        """As `partitions`, without missing topics and partitions."""
        return self._asked(self._partitions, missing_is_error=False)

    def offsets(self, times: Mapping[TopicPartition, int]) -> Offsets:
        """The offset of each partition for a ListOffsets timestamp; -1 if there is no such record."""
        if not times:
            return {}
        level = self._options.isolation_level
        found = self._asked(lambda admin: admin.list_offsets(times, isolation_level=level))
        return {tp: row.offset for tp, row in found.items()}

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self.offsets(dict.fromkeys(partitions, LATEST))

    def logs(
        self, partitions: Iterable[TopicPartition], latest: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Log]:
        """The log of each partition; `latest` are the known log end offsets."""
        begins = self.offsets(dict.fromkeys(partitions, EARLIEST))
        return {tp: Log(begin, max(latest[tp], begin)) for tp, begin in begins.items()}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        with self._admin() as admin:
            admin.set_group_offsets(group, offsets)

    def _admin(self) -> AbstractContextManager[Admin]:
        return clients.admin(
            {"bootstrap.servers": self._options.kafka["bootstrap.servers"]}, **self._settings
        )

    def _asked(self, ask: Callable[..., Answer], **how: bool) -> Answer:
        attempt = 0
        while True:
            try:
                with self._admin() as admin:
                    return ask(admin, **how)
            except KafkaError as error:
                if not error.retriable or attempt >= self._options.retries:
                    raise
            attempt += 1
            time.sleep(self._options.retry_interval_ms / 1000)

    def _partitions(self, admin: Admin, *, missing_is_error: bool) -> list[TopicPartition]:
        options = self._options
        if options.topic_pattern is not None:
            matches = options.topic_pattern.fullmatch
            found = {name: topic for name, topic in admin.list_topics().items() if matches(name)}
            if not found and missing_is_error:
                raise OptionError(
                    f"option subscribePattern: no topic matches {options.topic_pattern.pattern!r}: "
                    "look with `ottla topic list`"
                )
            return _all_of(found)
        assigned = options.partitions
        names = options.topics or tuple(dict.fromkeys(tp.topic for tp in assigned or ()))
        topics, missing = _described(admin, names)
        if missing and missing_is_error:
            near = [
                near for name in missing for near in difflib.get_close_matches(name, admin.list_topics(), 1)
            ]
            hint = f"did you mean {', '.join(near)}?" if near else "look with `ottla topic list`"
            raise OptionError(f"there is no topic {' nor '.join(missing)}: {hint}")
        there = _all_of(topics)
        if assigned is None:
            return there
        for tp in assigned:
            if missing_is_error and tp not in there:
                count = len(topics[tp.topic].partitions)
                raise OptionError(
                    f"option assign: topic {tp.topic} has partitions 0 to {count - 1}, not {tp.partition}"
                )
        return [tp for tp in assigned if tp in set(there)]


def _described(admin: Admin, names: Iterable[str]) -> tuple[dict[str, TopicInfo], list[str]]:
    """Return the topics that exist, and the names of missing ones."""
    wanted = list(names)
    try:
        return admin.describe_topics(wanted), []
    except TopicNotFound:
        missing = wanted
    except SeveralFailed as error:
        if not all(isinstance(each, TopicNotFound) for each in error.errors.values()):
            raise
        missing = list(error.errors)
    if len(wanted) == 1:
        return {}, missing
    topics = admin.list_topics(internal=True)
    there = {name: topics[name] for name in wanted if name in topics}
    return there, [name for name in wanted if name not in there]


def _all_of(topics: Mapping[str, TopicInfo]) -> list[TopicPartition]:
    return sorted(TopicPartition(name, index) for name, topic in topics.items() for index in topic.partitions)
