"""Groups of random members that come, go, fall silent and restart, with a coordinator that moves: what must hold all the time.

Each client does what a consumer does: it joins, the leader divides the partitions, it syncs, heartbeats and commits, and on an
error does what the protocol says. In between members leave, die or come back as static ones, time passes, and the
coordinator is lost with everything that is not in its log.

- At every stable moment each partition belongs to exactly one member.
- No two members that hold the present generation hold the same partition.
- A committed offset is what was committed last, whatever has happened to the coordinator; a commit of another generation changes
  nothing.
"""

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.groups.classic import Join, Sync
from ottla.groups.classic_group import State
from ottla.groups.shard import Commit
from ottla.model.errors import ErrorCode
from tests.groups.conftest import Heard, World

PARTITIONS = range(6)
SESSION_MS = 10_000
REBALANCE_MS = 20_000


class Consumer:
    def __init__(self, instance: str | None) -> None:
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.leads = False
        self.members: list[str] = []
        self.join: Heard | None = None
        self.sync: Heard | None = None
        #: What it holds; None unless it has an assignment of its generation.
        self.parts: tuple[int, ...] | None = None
        self.is_out = False

    def begin_again(self) -> None:
        """It has no place in the group any more."""
        self.member_id, self.generation, self.parts = "", -1, None
        self.join = self.sync = None


class Groups(RuleBasedStateMachine):
    @initialize(delay=st.sampled_from(["0", "3000"]))
    def begin(self, delay: str) -> None:
        self.world = World(group_initial_rebalance_delay_ms=delay)
        self.consumers: list[Consumer] = []
        self.dead: list[Consumer] = []
        self.committed: dict[int, int] = {}
        self.next_offset = 0

    @property
    def group(self) -> Any:
        return self.world.shard.groups.get("g")

    # --- members ------------------------------------------------------------------------------------------------

    @rule(instance=st.sampled_from([None, None, "a", "b"]))
    def come(self, instance: str | None) -> None:
        if len(self.consumers) < 6:
            self.consumers.append(Consumer(instance))

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def die(self, data: Any) -> None:
        """It says nothing any more, without a word."""
        gone = data.draw(st.sampled_from(self.consumers))
        self.consumers.remove(gone)
        self.dead.append(gone)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        gone = data.draw(st.sampled_from(self.consumers))
        self.consumers.remove(gone)
        if gone.member_id:
            self.world.shard.classic.leave("g", [(gone.member_id, gone.instance)], self.world.now_ms)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def act(self, data: Any) -> None:
        """One of them does the next thing that a consumer does."""
        self._act(data.draw(st.sampled_from(self.consumers)))

    @rule(ms=st.sampled_from([1, 100, 3000, 9000, 21_000]))
    def wait(self, ms: int) -> None:
        """Time passes; those who have something to say meanwhile say it."""
        for _ in range(max(1, ms // 3000)):
            self.world.advance(min(ms, 3000))
            for consumer in list(self.consumers):
                if consumer.join is None and consumer.sync is None:
                    self._heartbeat(consumer)

    @rule()
    def move(self) -> None:
        """The coordinator is lost; the next one has the log. Who waited hears that it must ask again."""
        before = self.group
        self.world.begin()
        if before is not None and before.state is State.STABLE:
            after = self.group
            assert after.state is State.STABLE
            assert (after.generation, after.leader_id, after.static) == (
                before.generation, before.leader_id, before.static,
            )  # fmt: skip
            assert {name: member.assignment for name, member in after.members.items()} == {
                name: member.assignment for name, member in before.members.items()
            }
        for consumer in self.consumers:
            consumer.join = consumer.sync = None

    @rule()
    def calm(self) -> None:
        """Everybody goes on until nothing is left to be done: then the group is stable, or empty."""
        for _ in range(40):
            for consumer in list(self.consumers):
                self._act(consumer)
            self.world.advance(1000)
        if not self.consumers:
            return
        assert self.group is not None and self.group.state is State.STABLE, self.group and self.group.state
        held = [part for consumer in self.consumers for part in consumer.parts or ()]
        assert sorted(held) == list(PARTITIONS)
        assert {consumer.member_id for consumer in self.consumers} <= set(self.group.members)

    def _act(self, consumer: Consumer) -> None:
        if consumer not in self.consumers:
            return
        if consumer.join is not None:
            self._joined(consumer)
        elif consumer.sync is not None:
            self._synced(consumer)
        elif consumer.parts is None:
            self._join(consumer)
        else:
            self._heartbeat(consumer)

    def _join(self, consumer: Consumer) -> None:
        consumer.join = Heard()
        self.world.shard.classic.join(
            Join("g", consumer.member_id, consumer.instance, "client", "/h", SESSION_MS, REBALANCE_MS, "consumer",
                 (("range", b"meta"),), True, True),
            consumer.join, self.world.now_ms,
        )  # fmt: skip
        self._joined(consumer)

    def _joined(self, consumer: Consumer) -> None:
        heard = consumer.join
        assert heard is not None
        if not heard.is_answered:
            return
        consumer.join = None
        if heard.error == ErrorCode.MEMBER_ID_REQUIRED:
            assert heard.response is not None
            consumer.member_id = heard.response["member_id"]
        elif heard.error == ErrorCode.FENCED_INSTANCE_ID:
            # Another has its name: it gives up, as a real one does.
            self.consumers.remove(consumer)
        elif heard.error:
            if heard.error != ErrorCode.REBALANCE_IN_PROGRESS:
                consumer.begin_again()
        else:
            response = heard.response
            assert response is not None
            consumer.member_id, consumer.generation = response["member_id"], response["generation_id"]
            consumer.leads = response["leader"] == consumer.member_id and not response["skip_assignment"]
            consumer.members = [row["member_id"] for row in response["members"]]
            self._sync(consumer)

    def _sync(self, consumer: Consumer) -> None:
        consumer.sync = Heard()
        assignments = {}
        if consumer.leads:
            names = sorted(consumer.members)
            assignments = {
                name: bytes(part for part in PARTITIONS if part % len(names) == at)
                for at, name in enumerate(names)
            }
        self.world.shard.classic.sync(
            Sync(
                "g", consumer.generation, consumer.member_id, consumer.instance, "consumer", "range", assignments
            ),
            consumer.sync,
            self.world.now_ms,
        )  # fmt: skip
        self._synced(consumer)

    def _synced(self, consumer: Consumer) -> None:
        heard = consumer.sync
        assert heard is not None
        if not heard.is_answered:
            return
        consumer.sync = None
        if heard.error == ErrorCode.FENCED_INSTANCE_ID:
            self.consumers.remove(consumer)
        elif heard.error:
            if heard.error != ErrorCode.REBALANCE_IN_PROGRESS:
                consumer.begin_again()
        else:
            assert heard.response is not None
            consumer.parts = tuple(heard.response["assignment"])

    def _heartbeat(self, consumer: Consumer) -> None:
        if consumer.parts is None:
            return
        code = self.world.shard.heartbeat(
            "g", consumer.generation, consumer.member_id, consumer.instance, self.world.now_ms
        )
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            consumer.parts = None
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self.consumers.remove(consumer)
        elif code:
            consumer.begin_again()

    # --- offsets ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.consumers or self.dead)
    @rule(data=st.data(), part=st.sampled_from(PARTITIONS))
    def commit(self, data: Any, part: int) -> None:
        """Anybody may try, the dead included."""
        consumer = data.draw(st.sampled_from(self.consumers + self.dead))
        shard = self.world.shard
        code = shard.check_commit(
            "g", consumer.generation, consumer.member_id, consumer.instance, self.world.now_ms
        )
        if code:
            return
        group = self.group
        if group is not None and group.members:
            assert consumer.member_id in group.members and consumer.generation == group.generation
        self.next_offset += 1
        heard = Heard()
        shard.commit(
            "g", [Commit("t", part, self.next_offset, -1, "", bytes(16))], -1, (heard, {"error_code": 0})
        )
        assert heard.is_answered
        self.committed[part] = self.next_offset

    # --- what must hold -----------------------------------------------------------------------------------------

    @invariant()
    def offsets_are_what_was_committed(self) -> None:
        if hasattr(self, "world"):
            known = {place[1]: value.offset for place, value in self.world.shard.offsets.of("g").items()}
            assert known == self.committed

    @invariant()
    def nobody_shares_a_partition(self) -> None:
        group = getattr(self, "world", None) and self.group
        if group is None:
            return
        held = [
            part
            for consumer in self.consumers + self.dead
            if consumer.member_id in group.members and consumer.generation == group.generation
            for part in consumer.parts or ()
        ]
        assert len(held) == len(set(held)), held
        if group.state is State.STABLE:
            assigned = [part for member in group.members.values() for part in member.assignment]
            assert sorted(assigned) == list(PARTITIONS)
            assert group.leader_id in group.members
        assert set(group.static.values()) <= set(group.members)
        # What is counted as it comes and goes is what would be found by looking.
        assert group.joined == sum(member.join is not None for member in group.members.values())
        assert group.supporters == Counter(name for member in group.members.values() for name in member.names)
        assert (not group.members) or group.state is not State.EMPTY


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
