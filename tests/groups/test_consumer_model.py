"""Consumer groups of random members that come, go, fall silent, lose answers and want other topics, with a coordinator that moves and
topics that change: what must hold all the time (KIP-848).

Each client does what a consumer does: it reads what it was told, gives up what it is not told any more when it gets to it, says
what it owns, and joins again owning nothing when it is fenced. An answer may be lost on its way.

- Never do two members that are alive read one partition, whatever they have heard or missed.
- At every stable moment each partition of each topic that is read belongs to exactly one member, in fair shares.
- Epochs only grow: the group's, the assignment's, and each member's.
- A coordinator that moves takes everything along.
"""

from collections import Counter
from contextlib import suppress
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.groups.consumer import Heartbeat
from ottla.groups.consumer_group import ConsumerGroup, Phase
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.steps import run
from tests.groups.conftest import Heard, World

TOPICS = ("a", "b", "c")
REBALANCE_MS = 20_000
SESSION_MS = 45_000
BEAT_MS = 5000

Place = tuple[bytes, int]


class Client:
    def __init__(self, name: str, instance: str | None, names: frozenset[str], regex: str | None) -> None:
        self.name = name
        self.instance = instance
        self.names = names
        self.regex = regex
        self.epoch = 0
        #: What it reads, and what it was told that it may.
        self.owned: frozenset[Place] = frozenset()
        self.told: frozenset[Place] = frozenset()
        #: It has to say everything, since it does not know what was heard.
        self.is_unsure = False
        self.is_changed = False
        #: The last time that it heard of the coordinator. A client that hears nothing for a session stops reading.
        self.heard_ms = 0

    def begin_again(self) -> None:
        self.epoch, self.owned, self.told, self.is_unsure = 0, frozenset(), frozenset(), False


class Groups(RuleBasedStateMachine):
    @initialize(assignor=st.sampled_from(["uniform,range", "range"]))
    def begin(self, assignor: str) -> None:
        self.world = World(group_consumer_assignors=assignor)
        self.fair = assignor.startswith("uniform")
        for name in TOPICS[:2]:
            self.world.make_topic(name, 3)
        self.clients: list[Client] = []
        self.count = 0
        self.epochs: dict[str, int] = {}
        self.group_epoch = self.assignment_epoch = 0

    @property
    def group(self) -> ConsumerGroup | None:
        group = self.world.shard.groups.get("g")
        assert group is None or isinstance(group, ConsumerGroup)
        return group

    # --- members ------------------------------------------------------------------------------------------------

    @rule(
        instance=st.sampled_from([None, None, None, "i", "j"]),
        names=st.frozensets(st.sampled_from(TOPICS), min_size=1),
        regex=st.sampled_from([None, None, "[ab]", ".*"]),
    )
    def come(self, instance: str | None, names: frozenset[str], regex: str | None) -> None:
        if len(self.clients) < 5 and all(
            instance is None or client.instance != instance for client in self.clients
        ):
            self.count += 1
            self.clients.append(Client(f"m{self.count}", instance, names, regex))

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def die(self, data: Any) -> None:
        self.clients.remove(data.draw(st.sampled_from(self.clients)))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), is_back=st.booleans())
    def leave(self, data: Any, is_back: bool) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        if client.epoch:
            # Whoever is out already is told so.
            with suppress(Refusal):
                self._send(client, -2 if is_back and client.instance is not None else -1)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), is_lost=st.booleans())
    def beat(self, data: Any, is_lost: bool) -> None:
        self._beat(data.draw(st.sampled_from(self.clients)), is_lost=is_lost)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def give_up(self, data: Any) -> None:
        """It gets to giving up what it was not told any more; and begins to read what it was told."""
        client = data.draw(st.sampled_from(self.clients))
        client.owned = client.told

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), names=st.frozensets(st.sampled_from(TOPICS), min_size=1))
    def want(self, data: Any, names: frozenset[str]) -> None:
        client = data.draw(st.sampled_from(self.clients))
        client.names, client.is_changed = names, True

    # --- the world ----------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(TOPICS), more=st.integers(1, 3))
    def grow(self, name: str, more: int) -> None:
        known = self.world.topic(name)
        if known is None or len(known.racks) < 6:
            self.world.make_topic(name, more + (len(known.racks) if known else 0))

    @rule(name=st.sampled_from(TOPICS))
    def remove(self, name: str) -> None:
        if name in self.world.topics and len(self.world.topics) > 1:
            self.world.remove_topic(name)

    @rule(steps=st.integers(1, 6))
    def wait(self, steps: int) -> None:
        """Time passes and everybody heartbeats; those who have something to give up take their time."""
        for _ in range(steps):
            self.world.advance(BEAT_MS)
            for client in self.clients:
                self._beat(client)

    @rule(ms=st.sampled_from([1000, 30_000, 50_000]))
    def sleep(self, ms: int) -> None:
        """Nobody says anything. Who has not heard anything for a session does not read any more."""
        self.world.advance(ms)
        for client in self.clients:
            if client.epoch and self.world.now_ms - client.heard_ms >= SESSION_MS:
                client.begin_again()

    @rule()
    def move(self) -> None:
        before = None if self.group is None else run(self.world.shard.consumer.describe(self.group))
        owners = {} if self.group is None else dict(self.group.owners)
        self.world.begin()
        if before is not None:
            assert self.group is not None
            assert run(self.world.shard.consumer.describe(self.group)) == before
            assert self.group.owners == owners

    @rule()
    def calm(self) -> None:
        """Everybody goes on until nothing is left to be done."""
        for _ in range(30):
            self.world.advance(2000)
            for client in self.clients:
                client.owned = client.told
                self._beat(client)
        if not self.clients:
            return
        assert self.group is not None and self.group.state is Phase.STABLE
        assert set(self.group.members) == {client.name for client in self.clients}
        held = sorted(place for client in self.clients for place in client.owned)
        wanted = {
            (view.topic_id, number)
            for client in self.clients
            for view in self.world.topics.values()
            if view.name in self._reads(client)
            for number in range(len(view.racks))
        }
        assert held == sorted(wanted)
        if self.fair and len({self._reads(client) for client in self.clients}) == 1:
            sizes = [len(client.owned) for client in self.clients]
            assert max(sizes) - min(sizes) <= 1

    def _reads(self, client: Client) -> frozenset[str]:
        matched = {None: set(), "[ab]": {"a", "b"}, ".*": set(self.world.topics)}[client.regex]
        return frozenset((client.names | matched) & self.world.topics.keys())

    # --- requests -----------------------------------------------------------------------------------------------

    def _send(self, client: Client, epoch: int) -> Any:
        joins, says_all = epoch == 0, epoch == 0 or client.is_unsure
        heard = Heard()
        self.world.shard.consumer.heartbeat(
            Heartbeat(
                "g", client.name, epoch, client.instance,
                rebalance_timeout_ms=REBALANCE_MS if says_all else -1,
                names=client.names if says_all or client.is_changed else None,
                regex=client.regex if says_all else None,
                owned=frozenset() if joins else client.owned,
            ),
            heard, self.world.now_ms,
        )  # fmt: skip
        return heard.response

    def _beat(self, client: Client, *, is_lost: bool = False) -> None:
        try:
            answer = self._send(client, client.epoch)
        except Refusal as refusal:
            self._refused(client, refusal.code)
            return
        client.is_changed = False
        if is_lost:
            client.is_unsure = True
            return
        assert answer["member_epoch"] >= client.epoch
        client.epoch, client.is_unsure, client.heard_ms = answer["member_epoch"], False, self.world.now_ms
        if answer["assignment"] is not None:
            client.told = frozenset(
                (row["topic_id"], number)
                for row in answer["assignment"]["topic_partitions"]
                for number in row["partitions"]
            )
            # What is new is read at once; what is not told any more is given up when it gets to it.
            client.owned |= client.told

    def _refused(self, client: Client, code: ErrorCode) -> None:
        expected = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND}
        if client.instance is not None:
            # One that died with this name has it until its session is over.
            expected.add(ErrorCode.UNRELEASED_INSTANCE_ID)
        assert code in expected
        client.begin_again()

    # --- what holds always --------------------------------------------------------------------------------------

    @invariant()
    def no_partition_is_read_twice(self) -> None:
        if not hasattr(self, "clients"):
            return
        group = self.group
        readers: dict[Place, str] = {}
        for client in self.clients:
            member = None if group is None else group.members.get(client.name)
            # One that was sent away for not giving up in time has been warned, and the rest is its own.
            if member is None or not client.epoch:
                continue
            for place in client.owned:
                assert place not in readers, (place, readers[place], client.name)
                readers[place] = client.name
                assert group is not None and group.owners.get(place) == client.name

    @invariant()
    def epochs_only_grow(self) -> None:
        group = getattr(self, "clients", None) is not None and self.group
        if not group:
            return
        assert group.epoch >= self.group_epoch and group.assignment_epoch >= self.assignment_epoch
        assert group.assignment_epoch <= group.epoch
        self.group_epoch, self.assignment_epoch = group.epoch, group.assignment_epoch
        for name, member in group.members.items():
            epoch = member.current.epoch
            assert epoch == -2 or self.epochs.get(name, 0) <= epoch <= group.epoch
            self.epochs[name] = epoch

    @invariant()
    def holdings_and_owners_agree(self) -> None:
        group = getattr(self, "clients", None) is not None and self.group
        if not group:
            return
        held = {
            place: name for name, member in group.members.items() for place in member.current.owned_partitions
        }
        assert held == group.owners
        assert group.preference_counts == Counter(
            member.subscription.preferences for member in group.members.values()
        )
        assert sum(len(member.current.owned_partitions) for member in group.members.values()) == len(held)


Groups.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestGroups = Groups.TestCase
