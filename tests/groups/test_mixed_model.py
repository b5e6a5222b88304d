"""The world of `test_consumer_model.py` with members of the classic protocol beside those of the new one, eager and cooperative ones,
so that the group changes its protocol again and again, in the middle of whatever is going on.

- Never do two members that are alive read one partition, whichever protocol they speak and whatever the group is at the moment.
- When all have gone on for a while, each partition that is read has exactly one reader, and the group's kind is that of its members.
- A coordinator that moves takes everything along.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from ottla.groups.classic_group import ClassicGroup, State
from ottla.groups.consumer_group import ConsumerGroup, Phase
from ottla.model.errors import ErrorCode
from ottla.model.steps import run
from tests.groups.clients import ClassicClient
from tests.groups.conftest import World
from tests.groups.test_consumer_model import BEAT_MS, SESSION_MS, TOPICS, Groups, Place

#: Longer than the steps in which time passes, so that who is alive is not lost by chance.
CLASSIC_SESSION_MS = 20_000


class Mixed(Groups):
    @initialize(
        assignor=st.sampled_from(["uniform,range", "range"]),
        policy=st.sampled_from(["bidirectional", "bidirectional", "upgrade", "downgrade", "disabled"]),
        cooperative=st.lists(st.booleans(), max_size=3),
        new=st.integers(0, 2),
    )
    def begin(self, assignor: str, policy: str, cooperative: list[bool], new: int) -> None:
        super().begin(assignor)
        self.world = World(
            group_consumer_assignors=assignor,
            group_consumer_migration_policy=policy,
            group_initial_rebalance_delay_ms="0",
        )
        for name in TOPICS[:2]:
            self.world.make_topic(name, 3)
        self.policy = policy
        self.classics: list[ClassicClient] = []
        self.seen_group: Any = None
        for each in cooperative:
            self.come_classic(None, frozenset(TOPICS[:2]), each)
        self.wait(2)
        for _ in range(new):
            self.come(None, frozenset(TOPICS[:2]), None)

    @property
    def group(self) -> ConsumerGroup | None:
        return self.world.shard.consumer_group("g")

    # --- members ------------------------------------------------------------------------------------------------

    @rule(
        instance=st.sampled_from([None, None, None, "i", "j"]),
        names=st.frozensets(st.sampled_from(TOPICS), min_size=1),
        cooperative=st.booleans(),
    )
    def come_classic(self, instance: str | None, names: frozenset[str], cooperative: bool) -> None:
        if instance is not None:
            # A static member that comes back to a stable classic group has what it had, whatever it wants now, as on Kafka.
            names = frozenset(TOPICS[:2])
        known = {client.instance for client in (*self.clients, *self.classics)}
        if len(self.classics) < 4 and (instance is None or instance not in known):
            self.classics.append(
                ClassicClient(
                    self.world, *sorted(names), cooperative=cooperative, instance=instance, session_ms=CLASSIC_SESSION_MS
                )
            )  # fmt: skip

    @precondition(lambda self: self.classics)
    @rule(data=st.data())
    def die_classic(self, data: Any) -> None:
        self.classics.remove(data.draw(st.sampled_from(self.classics)))

    @precondition(lambda self: self.classics)
    @rule(data=st.data())
    def leave_classic(self, data: Any) -> None:
        client = data.draw(st.sampled_from(self.classics))
        self.classics.remove(client)
        if client.member_id:
            client.leave()

    @precondition(lambda self: self.classics)
    @rule(data=st.data())
    def go_on(self, data: Any) -> None:
        data.draw(st.sampled_from(self.classics)).go_on()

    @precondition(lambda self: self.classics)
    @rule(data=st.data(), names=st.frozensets(st.sampled_from(TOPICS), min_size=1))
    def want_classic(self, data: Any, names: frozenset[str]) -> None:
        client = data.draw(st.sampled_from(self.classics))
        if client.instance is None:
            client.topics = tuple(sorted(names))

    @rule(
        instance=st.sampled_from([None, None, None, "i", "j"]),
        names=st.frozensets(st.sampled_from(TOPICS), min_size=1),
        regex=st.sampled_from([None, None, "[ab]", ".*"]),
    )
    def come(self, instance: str | None, names: frozenset[str], regex: str | None) -> None:
        if all(instance is None or client.instance != instance for client in self.classics):
            super().come(instance, names, regex)

    # --- the world ----------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(TOPICS))
    def remove(self, name: str) -> None:
        """Members of the classic protocol know topics by name alone: what they had of one is over before another has its name."""
        super().remove(name)
        for classic in self.classics if name not in self.world.topics else ():
            classic.parts = frozenset(place for place in classic.parts if place[0] != name)
            # It has noticed, then, and will notice the other one, even if that has as many partitions.
            classic.seen.pop(name, None)

    @rule(steps=st.integers(1, 6))
    def wait(self, steps: int) -> None:
        for _ in range(steps):
            self.world.advance(BEAT_MS)
            for client in self.clients:
                self._beat(client)
            for classic in self.classics:
                classic.go_on()

    @rule(ms=st.sampled_from([1000, 15_000, 50_000]))
    def sleep(self, ms: int) -> None:
        """Who has not heard anything for a session does not read any more."""
        self.world.advance(ms)
        for client in self.clients:
            if client.epoch and self.world.now_ms - client.heard_ms >= SESSION_MS:
                client.begin_again()
        if ms >= CLASSIC_SESSION_MS:
            for classic in self.classics:
                classic.parts = frozenset()

    @rule()
    def move(self) -> None:
        # Whoever waits for an answer is told that it must ask elsewhere.
        for reply in self.world.shard.unload():
            reply.refuse(ErrorCode.NOT_COORDINATOR)
        before = None if self.group is None else run(self.world.shard.consumer.describe(self.group))
        self.world.begin()
        if before is not None:
            assert self.group is not None
            assert run(self.world.shard.consumer.describe(self.group)) == before

    @rule()
    def calm(self) -> None:
        for _ in range(45):
            self.world.advance(2000)
            for client in self.clients:
                client.owned = client.told
                self._beat(client)
            for classic in self.classics:
                classic.go_on()
        if not self.clients and not self.classics:
            return
        group, clients = self.world.shard.groups["g"], self.clients
        if isinstance(group, ClassicGroup):
            assert group.state is State.STABLE
            # Members of the new protocol stay outside only where nobody may let them in.
            assert not clients or self.policy in ("downgrade", "disabled")
            clients = []
        else:
            assert group.state is Phase.STABLE
            assert clients or self.policy in ("upgrade", "disabled")
        assert set(group.members) == {
            *(client.name for client in clients),
            *(classic.member_id for classic in self.classics),
        }
        held = [place for client in clients for place in client.owned]
        held += [place for classic in self.classics for place in classic.owned]
        wanted = {
            (view.topic_id, number)
            for view in self.world.topics.values()
            if any(view.name in self._reads(client) for client in clients)
            or any(view.name in classic.topics for classic in self.classics)
            for number in range(len(view.racks))
        }
        assert sorted(held) == sorted(wanted)

    # --- what holds always --------------------------------------------------------------------------------------

    @invariant()
    def no_partition_is_read_twice(self) -> None:
        group = getattr(self, "classics", None) is not None and self.world.shard.groups.get("g")
        if not group:
            return
        readers: dict[Place, str] = {}
        reading = [(client.name, client.owned) for client in self.clients if client.epoch]
        reading += [(classic.member_id, classic.owned) for classic in self.classics]
        for name, places in reading:
            # Who is out of the group reads until it hears of it, as ever.
            for place in places if name in group.members else ():
                assert place not in readers, (place, readers[place], name)
                readers[place] = name
                if isinstance(group, ConsumerGroup):
                    assert group.owners.get(place) == name

    @invariant()
    def epochs_only_grow(self) -> None:
        if getattr(self, "classics", None) is None:
            return
        if self.group is not self.seen_group:
            self.seen_group = self.group
            self.epochs, self.group_epoch, self.assignment_epoch = {}, 0, 0
        super().epochs_only_grow()


Mixed.TestCase.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
TestMixed = Mixed.TestCase
