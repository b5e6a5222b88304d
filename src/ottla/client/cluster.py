"""The cluster as one client sees it: bootstrap, metadata refreshes, and connections to brokers.

Metadata is refreshed on request, after failures (`refresh_soon`, which combines calls and backs off) and
every `metadata_max_age_ms`. Any broker can answer: a connected one, else a known one, else a bootstrap
address (KIP-899), so a client survives the replacement of all brokers. If one broker does not answer, another
one is asked too (`hedged_request`). Failures that are retried in the background are logged on `ottla.client`.
Each producer, consumer and admin client owns one `Cluster`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, TypeVar

from ottla.client.backoff import backoff_ms
from ottla.client.complaints import Complaints
from ottla.client.connection import Body, BrokerConnection
from ottla.client.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ConnectionLost,
    KafkaError,
    RequestTimedOut,
    TopicNotFound,
    refused,
)
from ottla.client.hedged_request import AllFailed, first_answer
from ottla.client.metadata import Metadata, Node, TopicInfo, TopicPartition
from ottla.client.pool import Address, Pool
from ottla.client.settings import ClientConfig, address_text
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode

__all__ = ["Address", "Cluster", "backoff_ms"]

#: How many brokers are asked for metadata, one after the other, if connections break.
ASKED_MAX: Final = 3

Result = TypeVar("Result")

#: Advice for an address that has worked before.
DOWN: Final = "It answered before, so it may be down or restarting"

_LOGGER: Final = logging.getLogger("ottla.client")


class Cluster:
    def __init__(
        self, bootstrap: list[Address], settings: ClientConfig, *, create_topics: bool = False
    ) -> None:
        self.metadata = Metadata()
        self.settings = settings
        self.pool = Pool(settings)
        #: The error of the last background refresh; None if it succeeded.
        self.failure: KafkaError | None = None
        self._bootstrap = bootstrap
        self._create_topics = create_topics
        self._watched: set[str] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self._periodic: asyncio.TimerHandle | None = None
        self._started = False
        self._closed = False
        self._changed = asyncio.Event()
        self._failures = 0
        self._complaints = Complaints(_LOGGER)

    async def start(self) -> None:
        """Connect to any bootstrap server and fetch the metadata, or raise `BrokerUnreachable` that lists
        every attempt.
        """
        await self.refresh(())
        self._started = True
        self._schedule()

    async def close(self) -> None:
        self._closed = True
        if self._periodic is not None:
            self._periodic.cancel()
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        await self.pool.close()

    # Metadata

    async def refresh(self, topics: Iterable[str] | None, *, create: bool = False) -> Metadata:
        """Fetch the metadata of these topics (None: all topics) and merge the response.

        `create` lets the broker create missing topics. Use it only for a topic that is needed now: otherwise
        a refresh would re-create a deleted topic.
        """
        names = None if topics is None else list(topics)
        body: Body = {
            "topics": None if names is None else [{"name": name} for name in names],
            "allow_auto_topic_creation": create,
        }
        return await self._ask_metadata(body, complete=names is None)

    async def refresh_ids(self, topic_ids: Iterable[bytes]) -> Metadata:
        """Fetch the names of topic ids and merge the response. Brokers ignore unknown ids."""
        body: Body = {
            "topics": [{"name": None, "topic_id": topic_id} for topic_id in topic_ids],
            "allow_auto_topic_creation": False,
        }
        return await self._ask_metadata(body, complete=False)

    async def _ask_metadata(self, body: Body, *, complete: bool) -> Metadata:
        for asked in range(1, ASKED_MAX + 1):
            try:
                response = await self.ask_any(ApiKey.METADATA, body)
            except (ConnectionLost, RequestTimedOut):
                # That connection is closed; a new connection to the same broker may work.
                if asked == ASKED_MAX or not self._started:
                    raise
                continue
            if int(getattr(response, "error_code", 0)) != ErrorCode.REBOOTSTRAP_REQUIRED:
                break
            # KIP-1102: the known brokers are useless, bootstrap again.
            self.metadata = self.metadata.without_brokers()
            self.pool.drop_all()
        self.metadata = self.metadata.merged(response, complete=complete)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        return self.metadata

    async def topic(self, name: str, timeout_ms: float) -> TopicInfo:
        """Return a topic. Wait until it is created and has leaders, else raise `TopicNotFound`. The topic is
        watched then.
        """
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        attempt = 0
        while True:
            known = self.metadata.topics.get(name)
            if known is not None:
                self._watched.add(name)
                return known
            attempt += 1
            wait_s = backoff_ms(self.settings, attempt) / 1000
            too_late = asyncio.get_running_loop().time() + wait_s > deadline
            try:
                metadata = await self.refresh((name,), create=self._create_topics)
            except KafkaError as error:
                # Brokers come back: retry within the caller's time.
                if not error.retriable or too_late:
                    raise
                self._complain(error)
                await asyncio.sleep(wait_s)
                continue
            if name in metadata.topics:
                continue
            code = metadata.errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            # Without auto-creation a missing topic does not appear by waiting, unless it was just created and
            # this broker's metadata is old: look once more.
            hopeless = not self._create_topics and attempt > 1
            if not code.retriable or hopeless or too_late:
                raise self.unavailable(name, code)
            await asyncio.sleep(wait_s)

    def unavailable(self, topic: str, code: ErrorCode) -> KafkaError:
        """The error for a topic for which the brokers returned `code`."""
        if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
            return TopicNotFound(
                f"topic {topic!r} does not exist",
                code=code,
                topic=topic,
                advice=f"Create it with `ottla topic create {topic}`, or check `ottla topic list`",
            )
        return refused(code, f"topic {topic!r}", topic=topic)

    async def check_partitions(self, wanted: Iterable[TopicPartition], timeout_ms: float) -> None:
        """Raise `TopicNotFound` for missing partitions. Topics can grow: fetch fresh metadata first."""
        for tp in wanted:
            known = await self.topic(tp.topic, timeout_ms)
            if tp.partition not in known.partitions:
                await self.refresh((tp.topic,))
                known = await self.topic(tp.topic, timeout_ms)
            if tp.partition not in known.partitions:
                raise TopicNotFound(
                    f"topic {tp.topic!r} has partitions 0 to {len(known.partitions) - 1}, not {tp.partition}",
                    topic=tp.topic,
                    partition=tp.partition,
                    advice="Check it with `ottla topic describe`",
                )

    def hint(
        self,
        topic: str,
        partition: int,
        leader: int,
        leader_epoch: int,
        nodes: Mapping[int, tuple[str, int, str | None]],
    ) -> bool:
        """Use the leader that a refused request returned (KIP-951). Return whether it was new."""
        known = {node_id: Node(node_id, *where) for node_id, where in nodes.items()}
        newer = self.metadata.with_leader(topic, partition, leader, leader_epoch, known)
        if newer is not None:
            self.metadata = newer
        return newer is not None

    def watch(self, topics: Iterable[str]) -> None:
        """Include these topics in every refresh."""
        self._watched.update(topics)

    def refresh_soon(self) -> None:
        """Refresh in the background. Calls during a refresh share it."""
        if self._closed or (self._refreshing is not None and not self._refreshing.done()):
            return
        self._refreshing = asyncio.get_running_loop().create_task(self._refresh_watched())

    async def _refresh_watched(self) -> None:
        try:
            await self.refresh(self._watched)
            self._failures, self.failure = 0, None
        except KafkaError as error:
            self._failures += 1
            self.failure = error
            self._complain(error)
        # A caller that asks again at once waits for this task: that is the back-off.
        await asyncio.sleep(backoff_ms(self.settings, self._failures + 1) / 1000)

    async def changed(self) -> None:
        """Wait for the next metadata response."""
        await self._changed.wait()

    def _schedule(self) -> None:
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        self._periodic = loop.call_later(self.settings.metadata_max_age_ms / 1000, self._tick)

    def _tick(self) -> None:
        self.refresh_soon()
        self._schedule()

    # Connections

    def connected(self, node: Node, lane: str = "") -> BrokerConnection | None:
        """The connection to a broker, if it is open."""
        return self.pool.connected((node.host, node.port), lane)

    async def connection(self, node: Node, lane: str = "") -> BrokerConnection:
        """The connection to a broker, opened if needed. Concurrent callers share one attempt."""
        address = (node.host, node.port)
        try:
            found = await self.pool.reach(address, lane)
        except (BrokerUnreachable, RequestTimedOut) as error:
            explained = self._explain(node, error)
            self._complain(explained)
            raise explained from error
        except AuthenticationFailed as error:
            self._complain(error)
            raise
        self._complaints.settled(node.address)
        return found

    def _explain(self, node: Node, error: KafkaError) -> KafkaError:
        """An advertised address that never worked is more likely wrong than down."""
        address = (node.host, node.port)
        if address in self.pool.known_good:
            message, advice = f"broker {node.id}: {error.message}", DOWN
        elif address in self._bootstrap:
            return error
        else:
            known = ", ".join(address_text(*each) for each in self._bootstrap)
            message = f"broker {node.id} advertises {node.address}, and {error.message}"
            advice = (
                f"{known} answered, so check advertised.listeners on broker {node.id}: "
                "it must be an address that this machine can reach"
            )
        return type(error)(message, broker=node.address, advice=advice)

    def _complain(self, error: KafkaError) -> None:
        if self._started and not self._closed:
            self._complaints.warn(error.broker, str(error), asyncio.get_running_loop().time())

    async def controller(self) -> BrokerConnection:
        """A connection to the controller, or to any broker: Kafka forwards, other brokers answer
        NOT_CONTROLLER.
        """
        node = self.metadata.nodes.get(self.metadata.controller_id)
        return await (self.any_connection() if node is None else self.connection(node))

    async def any_connection(self) -> BrokerConnection:
        """An open connection, else one to a known broker, else one to a bootstrap address."""
        return await self._any(self.pool.reach)

    async def ask_any(self, api_key: int, body: Body) -> Any:
        """The first response of any broker."""

        async def ask(address: Address) -> Any:
            return await (await self.pool.reach(address)).request(api_key, body)

        return await self._any(ask)

    async def _any(self, ask: Callable[[Address], Coroutine[Any, Any, Result]]) -> Result:
        """Connected brokers first, the least busy one in front; then the known ones in random order."""
        known = [(node.host, node.port) for node in self.metadata.nodes.values()]
        addresses = list(dict.fromkeys([*known, *self._bootstrap]))
        random.shuffle(addresses)
        connected = self.pool.open_by_load()
        others = self.pool.soonest_first([each for each in addresses if each not in connected])
        try:
            return await first_answer([*connected, *others], ask)
        except AllFailed as nobody:
            failures = nobody.failures
        worked = {address_text(*each) for each in self.pool.known_good}
        for error in failures:
            if isinstance(error, BrokerUnreachable) and error.broker in worked:
                error.advice = DOWN
        if len(failures) == 1:
            raise failures[0]
        raise BrokerUnreachable(
            "no broker can be reached: " + "; ".join(error.message for error in failures),
            broker=", ".join(address_text(*address) for address in addresses),
            advice=failures[0].advice,
        )
