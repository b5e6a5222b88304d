"""Group members that read in their own thread and record their partitions and records."""

import threading
import time
from collections.abc import Iterable
from typing import Any, Self

import ottla
from ottla import TopicPartition

#: Members come at once, and are missed soon.
QUICKLY: dict[str, Any] = {
    "auto_offset_reset": "earliest",
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 100,
    "metadata_max_age_ms": 200,
    "retry_backoff_ms": 20,
    "retry_backoff_max_ms": 200,
}


class Member:
    """One consumer that subscribes; `with` begins to poll, its end closes the consumer in order."""

    def __init__(
        self,
        address: str,
        *topics: str,
        group: str | None,
        pattern: str | None = None,
        commits: bool = False,
        **settings: Any,
    ) -> None:
        given = {**QUICKLY, **settings}
        if given.get("group_protocol") == "consumer":
            # The broker decides about these.
            for name in ("session_timeout_ms", "heartbeat_interval_ms"):
                del given[name]
        if group is not None:
            given["group_id"] = group
        self.consumer = ottla.Consumer(address, **given)
        self.parts: set[TopicPartition] = set()
        self.records: list[Any] = []
        #: Every change in its order: ("assigned" | "revoked" | "lost", partitions).
        self.told: list[tuple[str, list[TopicPartition]]] = []
        self.errors: list[BaseException] = []
        self._commits = commits
        self._topics, self._pattern = topics, pattern
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join(60)
            self.consumer.close()
            assert self.errors == [], self.errors

    @property
    def seen(self) -> list[tuple[int, int]]:
        """Partition and offset of each record, as they came."""
        return [(record.partition, record.offset) for record in list(self.records)]

    @property
    def values(self) -> list[Any]:
        return [record.value for record in list(self.records)]

    def _run(self) -> None:
        try:
            self.consumer.subscribe(
                self._topics,
                pattern=self._pattern,
                on_assigned=lambda parts: self._hear("assigned", parts),
                on_revoked=lambda parts: self._hear("revoked", parts),
                on_lost=lambda parts: self._hear("lost", parts),
            )
            while not self._ended.is_set():
                for records in self.consumer.poll(50).values():
                    self.records += records
                    if self._commits:
                        self.consumer.commit()
        except BaseException as error:
            self.errors.append(error)

    def _hear(self, what: str, parts: Iterable[TopicPartition]) -> None:
        given = list(parts)
        self.told.append((what, given))
        if what == "assigned":
            self.parts |= set(given)
        else:
            self.parts -= set(given)


def shared(members: Iterable[Member], *everything: tuple[str, int]) -> bool:
    """Whether they have these partitions among them, each one once, and no others."""
    held = [tuple(part) for member in members for part in list(member.parts)]
    return sorted(held) == sorted(everything)


def wait_shared(members: Iterable[Member], *everything: tuple[str, int], each_has: int | None = None) -> None:
    listed = list(members)
    deadline = time.monotonic() + 60
    while not (
        shared(listed, *everything)
        and (each_has is None or all(len(member.parts) == each_has for member in listed))
    ):
        for member in listed:
            assert member.errors == [], member.errors
        assert time.monotonic() < deadline, [(sorted(member.parts), member.told[-4:]) for member in listed]
        time.sleep(0.01)
