"""Events of the store reach the core, requests of the core reach the store, each followed by a turn."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from member import on_a_loop, topic, until

from ottla.broker.requests.isolation import Isolation
from ottla.config.broker import BrokerConfig
from ottla.ports.effects import CLAIM, PROPOSE, REGISTER, SNAPSHOT, USURP, WATCH
from ottla.ports.store import Registration
from ottla.runtime.clock import Clock
from ottla.runtime.cluster_link import ClusterLink
from ottla.runtime.zookeeper_link import ZookeeperSettings
from ottla.runtime.zookeeper_store import ZookeeperStore


class Core:
    """Records each call; its effects are in its outbox, like those of a core."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.isolation = Isolation(self)  # type: ignore[arg-type]
        self.config = BrokerConfig.from_properties({"log.dirs": "unused"})
        self.records_in_log = -1
        self.now_ms = 0
        self.calls: list[Any] = []
        self.turns = 0

    def __getattr__(self, name: str) -> Any:
        def told(*arguments: Any) -> None:
            assert self.now_ms > 0
            # Without the time, which is the last argument.
            self.calls.append((name, *arguments[:-1]))

        if name in (
            "restored", "committed", "live_brokers", "controller_is", "refused",
            "store_suspended", "store_back", "store_lost",
        ):  # fmt: skip
            return told
        raise AttributeError(name)

    def prove_to(self, _node_id: int) -> None:
        return None

    def rejected(self) -> None:
        self.calls.append(("rejected",))

    def done(self, *result: Any) -> None:
        self.calls.append(("done", *result))

    def turn(self, _now_ms: int) -> None:
        self.turns += 1


class RunningLink:
    def __init__(self, connect: str, node_id: int) -> None:
        self.said: list[str] = []
        self.core = Core(self.said.append)
        clock = Clock()
        loop = asyncio.get_running_loop()
        self.cluster = ClusterLink(loop, clock, self.said.append, client_id="c")
        self.store = ZookeeperStore(
            ZookeeperSettings(connect), node_id, self.cluster, now_ms=clock.now_ms, say=self.said.append
        )

    def attach(self) -> None:
        self.cluster.attach(self.core, self.store, self.core.turn)  # type: ignore[arg-type]
        self.cluster.hand_over()

    async def perform(self, *effect: Any) -> Any:
        """Perform it; returns the arguments of its `done`."""
        before = len(self.core.calls)
        self.cluster.perform((*effect, self.core.done))
        told = lambda: [call for call in self.core.calls[before:] if call[0] == "done"]  # noqa: E731
        await until(told)
        return told()[0][1:]


@asynccontextmanager
async def running(connect: str, node_id: int) -> AsyncIterator[RunningLink]:
    one = RunningLink(connect, node_id)
    await one.store.connect()
    try:
        yield one
    finally:
        one.cluster.stop()
        await one.store.close()


def registration(node_id: int) -> Registration:
    return Registration(node_id, "h", 9000, None, (f"d{node_id}",), "life", True)


@on_a_loop
async def test_effects_reach_the_store_and_its_news_reach_the_core(cluster: str) -> None:
    async with running(cluster, 1) as one:
        one.attach()
        core = one.core
        assert core.calls == [("live_brokers", {}), ("controller_is", -1, 0)]
        epoch, error = await one.perform(REGISTER, registration(1))
        assert error is None and epoch > 0
        await until(lambda: ("live_brokers", {1: registration(1)._replace(epoch=epoch)}) in core.calls)
        assert await one.perform(CLAIM) == (1, None)
        await until(lambda: ("controller_is", 1, 1) in core.calls)
        before = core.turns
        assert await one.perform(PROPOSE, [topic(1), topic(2)]) == (None,)
        # First the records, then the callback of the proposal, each with its turn.
        assert core.calls[-2:] == [("committed", [topic(1), topic(2)]), ("done", None)]
        assert core.turns == before + 2
        assert core.records_in_log == 2
        assert await one.perform(SNAPSHOT, [topic(1), topic(2)]) == (None,)
        assert await one.perform(PROPOSE, [topic(3)]) == (None,)
        assert core.records_in_log == 1
        async with running(cluster, 2) as two:
            two.attach()
            assert await two.perform(USURP, 1, 1) == (2, None)
            result = await one.perform(PROPOSE, [topic(4)])
            assert result[0] is not None
            assert core.calls[-2:] == [("rejected",), ("done", *result)]


@on_a_loop
async def test_events_before_the_core_is_started_are_kept(cluster: str) -> None:
    async with running(cluster, 1) as one, running(cluster, 2) as late:
        one.attach()
        epoch, _ = await one.perform(REGISTER, registration(1))
        await one.perform(CLAIM)
        await one.perform(PROPOSE, [topic(1)])
        await one.perform(PROPOSE, [topic(2)])
        await until(lambda: late.cluster.records == [topic(1), topic(2)])
        await until(lambda: late.cluster.controller == (1, 1) and late.cluster.live)
        assert late.core.calls == []
        late.attach()
        live = {1: registration(1)._replace(epoch=epoch)}
        assert late.core.calls == [("live_brokers", live), ("controller_is", 1, 1)]
        assert late.core.records_in_log == 2
        await one.perform(PROPOSE, [topic(3)])
        await until(lambda: late.core.calls[-1] == ("committed", [topic(3)]))


@on_a_loop
async def test_a_watched_port_that_refuses_is_reported(cluster: str) -> None:
    async with running(cluster, 1) as one:
        one.attach()
        server = await asyncio.start_server(lambda _reader, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        before = one.core.turns
        one.cluster.perform((WATCH, {5: ("127.0.0.1", port)}))
        await until(lambda: ("refused", 5) in one.core.calls)
        assert one.core.turns > before


@on_a_loop
async def test_a_mistake_of_the_core_does_not_look_like_one_of_the_store(cluster: str) -> None:
    async with running(cluster, 1) as one:
        one.attach()
        await one.perform(CLAIM)

        def fails(_records: Any, _now_ms: int) -> None:
            raise ValueError("of the core's own")

        one.core.committed = fails  # type: ignore[attr-defined]
        assert await one.perform(PROPOSE, [topic(1)]) == (None,)
        assert "of the core's own" in one.said[0]
        assert ("store_suspended",) not in one.core.calls
