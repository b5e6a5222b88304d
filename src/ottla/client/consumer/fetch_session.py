"""A fetch session with one broker (KIP-227): after the first fetch, requests contain only changes.

The broker keeps the partitions of a session and their fetch offsets, and answers with the partitions that
have news. A session starts with a full fetch (epoch 0); the broker returns a session id, or 0 if it keeps
none. Each later fetch has the next epoch. After an error the next fetch starts a new session. No I/O here;
the fetcher has one session per broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ottla.client.consumer.settings import ISOLATION_LEVELS, ConsumerConfig
from ottla.client.metadata import TopicPartition

NO_SESSION: Final = 0
FIRST_EPOCH: Final = 0
_EPOCH_MAX: Final = 2**31 - 1


class Place(NamedTuple):
    """The fetch position of a partition, as the broker keeps it."""

    fetch_offset: int
    leader_epoch: int
    last_fetched_epoch: int


class FetchRequestData(NamedTuple):
    """The contents of a fetch: positions to add or change, and partitions to forget."""

    session_id: int
    epoch: int
    places: dict[TopicPartition, Place]
    forgotten: list[TopicPartition]


class FetchSession:
    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = FIRST_EPOCH
        self._known: dict[TopicPartition, Place] = {}
        self._ids: dict[str, bytes | None] = {}

    def ask(
        self, wanted: Mapping[TopicPartition, Place], ids: Mapping[str, bytes | None]
    ) -> FetchRequestData:
        """The next fetch for exactly these partitions, of topics with these ids."""
        if any(topic in self._ids and self._ids[topic] != topic_id for topic, topic_id in ids.items()):
            # A topic was re-created: the session's partitions are different ones.
            self.restart()
        self._ids.update(ids)
        if self._epoch == FIRST_EPOCH:
            places, forgotten = dict(wanted), []
        else:
            places = {tp: place for tp, place in wanted.items() if self._known.get(tp) != place}
            forgotten = [tp for tp in self._known if tp not in wanted]
        self._known = dict(wanted)
        return FetchRequestData(self._id, self._epoch, places, forgotten)

    def id_of(self, topic: str) -> bytes | None:
        """The topic id in this session."""
        return self._ids.get(topic)

    def answered(self, session_id: int) -> None:
        """The broker accepted the fetch."""
        if self._epoch == FIRST_EPOCH:
            self._id = session_id
            if session_id != NO_SESSION:
                self._epoch = 1
        elif session_id == NO_SESSION:
            self.restart()
        else:
            self._epoch = 1 if self._epoch == _EPOCH_MAX else self._epoch + 1

    def restart(self) -> None:
        """The next fetch is a full one: the session is lost, or the broker's state is unknown."""
        # With its id and the first epoch, the broker replaces this session.
        self._epoch = FIRST_EPOCH
        self._known = {}
        self._ids = {}


def request_body(
    asking: FetchRequestData,
    ids: Mapping[str, bytes | None],
    session: FetchSession,
    settings: ConsumerConfig,
    room_bytes: int,
    wait_ms: int,
) -> dict[str, Any]:
    """The Fetch request, for at most `room_bytes` bytes, held by the broker for at most `wait_ms`."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for tp, place in asking.places.items():
        row = {
            "partition": tp.partition,
            "current_leader_epoch": place.leader_epoch,
            "fetch_offset": place.fetch_offset,
            "last_fetched_epoch": place.last_fetched_epoch,
            "partition_max_bytes": settings.max_partition_fetch_bytes,
        }
        topics.setdefault(tp.topic, []).append(row)
    forgotten: dict[str, list[int]] = {}
    for topic, partition in asking.forgotten:
        forgotten.setdefault(topic, []).append(partition)
    return {
        "replica_id": -1,
        "max_wait": wait_ms,
        "min_bytes": settings.fetch_min_bytes,
        "max_bytes": max(1, min(settings.fetch_max_bytes, room_bytes)),
        "isolation_level": ISOLATION_LEVELS.index(settings.isolation_level),
        "session_id": asking.session_id,
        "session_epoch": asking.epoch,
        "topics": [
            {"topic": topic, "topic_id": ids[topic], "partitions": rows} for topic, rows in topics.items()
        ],
        "forgotten_topics_data": [
            {"topic": topic, "topic_id": session.id_of(topic), "partitions": numbers}
            for topic, numbers in forgotten.items()
        ],
        "rack_id": settings.client_rack,
    }
