"""Random producers, partitions and coordinators: what must hold all the time.

Producers of both versions begin, write, end, ask again when they are not answered, and are followed by others under the same
transactional id without knowing it. Partitions take batches and markers as Kafka's do (epochs, coordinator epochs, KIP-890). Markers
come late, twice or never; answers are lost; producer ids have to be waited for; time passes; and the coordinator is lost at any
moment, with any part of what does not count yet.

- All partitions of a transaction hear of the same end, once each; what was acknowledged is what they hear.
- Whoever was followed by somebody else changes nothing, neither in the coordinator's log nor in a partition.
- When everything has calmed down nothing is open: no transaction past its time-out, no end that is not carried out.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.model.errors import ErrorCode
from ottla.transactions.formats import EPOCH_MAX, Entry, Place, State
from ottla.transactions.host import Marker, MarkerRequest
from ottla.transactions.transaction import PREPARED
from tests.transactions.conftest import WALL_MS, A, B, Heard, World

PLACES: list[Place] = [A, B, ("c", 0)]
IDS = ["x", "y"]
OVER = {
    ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
}  # fmt: skip


PLANS = st.lists(
    st.tuples(st.sampled_from(PLACES), st.sampled_from(["add", "add", "commit", "abort"])),
    min_size=1,
    max_size=6,
)


class Partition:
    """What a partition's log knows of producers."""

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        self.coordinator_epochs: dict[int, int] = {}
        #: Producer id → the transactions whose batches are open.
        self.open: dict[int, set[int]] = {}

    def append(self, pair: tuple[int, int], tag: int) -> bool:
        producer_id, epoch = pair
        if epoch < self.epochs.get(producer_id, -1):
            return False
        self.epochs[producer_id] = epoch
        self.open.setdefault(producer_id, set()).add(tag)
        return True

    def mark(self, marker: Marker) -> tuple[ErrorCode, set[int]]:
        """The outcome, and which transactions have ended by it."""
        known = self.epochs.get(marker.producer_id, -1)
        is_open = marker.producer_id in self.open
        if marker.producer_epoch < known or (
            marker.transaction_version >= 2 and marker.producer_epoch == known and is_open
        ):
            return ErrorCode.INVALID_PRODUCER_EPOCH, set()
        if marker.coordinator_epoch < self.coordinator_epochs.get(marker.producer_id, -1):
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED, set()
        self.epochs[marker.producer_id] = marker.producer_epoch
        self.coordinator_epochs[marker.producer_id] = marker.coordinator_epoch
        return ErrorCode.NONE, self.open.pop(marker.producer_id, set())


class Producer:
    """One instance of a client."""

    def __init__(self, transactional_id: str, is_new: bool) -> None:
        self.transactional_id = transactional_id
        #: Whether it knows KIP-890.
        self.is_new = is_new
        self.pair = (-1, -1)
        self.phase = "init"
        self.heard: Heard | None = None
        self.then: Callable[[Heard], None] | None = None
        self.tag = -1
        self.added: set[Place] = set()
        self.commit = True
        #: Somebody has come after it.
        self.is_fenced = False


class Transactions(RuleBasedStateMachine):
    @initialize(worn=st.booleans())
    def begin(self, worn: bool) -> None:
        self.world = World()
        self.world.leaders = dict.fromkeys(PLACES, 1)
        if worn:
            # An id that has nearly used up its epochs.
            entry = Entry(
                7, EPOCH_MAX - 3, 60_000, State.EMPTY, WALL_MS, previous_producer_id=7, client_version=2
            )
            self.world.put(entry, "x")
        self.world.counts_at_once = False
        self.partitions = {place: Partition() for place in PLACES}
        self.producers: list[Producer] = []
        #: Markers under way, and those of them that the coordinator has given up waiting for.
        self.network: list[MarkerRequest] = []
        self.late: list[MarkerRequest] = []
        self.tags = 0
        #: How a transaction ended, in the first partition that heard of it; and what its producer was told.
        self.outcomes: dict[int, bool] = {}
        self.acknowledged: dict[int, bool] = {}

    # --- producers ----------------------------------------------------------------------------------------------

    @rule(transactional_id=st.sampled_from(IDS), is_new=st.booleans())
    def come(self, transactional_id: str, is_new: bool) -> None:
        if len(self.producers) < 6:
            self.producers.append(Producer(transactional_id, is_new))

    @rule(transactional_id=st.sampled_from(IDS), is_new=st.booleans(), plan=PLANS)
    def come_and_work(self, transactional_id: str, is_new: bool, plan: list[tuple[Place, str]]) -> None:
        """Somebody comes, and at first all goes well."""
        self.come(transactional_id, is_new)
        self._work(self.producers[-1], plan)

    @precondition(lambda self: self.producers)
    @rule(data=st.data(), plan=PLANS)
    def work(self, data: Any, plan: list[tuple[Place, str]]) -> None:
        """One of them goes on for a while, is answered, and its partitions have their markers."""
        self._work(data.draw(st.sampled_from(self.producers)), plan)

    def _work(self, producer: Producer, plan: list[tuple[Place, str]]) -> None:
        for place, how in plan:
            for _ in range(2):
                if producer in self.producers:
                    self._act(producer, place, how)
                    self.count_all()
            if how != "add":
                self._deliver_all()

    @precondition(lambda self: self.producers)
    @rule(data=st.data(), plan=PLANS)
    def act(self, data: Any, plan: list[tuple[Place, str]]) -> None:
        """Some of them do the next thing that a producer does, and nothing counts yet."""
        for place, how in plan:
            if self.producers:
                self._act(data.draw(st.sampled_from(self.producers)), place, how)

    @precondition(lambda self: self.producers)
    @rule(data=st.data())
    def lose_answer(self, data: Any) -> None:
        """It does not hear, and will ask again."""
        producer = data.draw(st.sampled_from(self.producers))
        producer.heard = producer.then = None

    @precondition(lambda self: self.producers)
    @rule(data=st.data())
    def die(self, data: Any) -> None:
        self.producers.remove(data.draw(st.sampled_from(self.producers)))

    @precondition(lambda self: self.producers)
    @rule(data=st.data())
    def recover(self, data: Any) -> None:
        """It has had an error and wants to go on in the next epoch, with what it was doing given up (KIP-360)."""
        producer = data.draw(st.sampled_from(self.producers))
        if producer.phase != "init" and producer.heard is None:
            producer.phase = "init"

    def _act(self, producer: Producer, place: Place, how: str) -> None:
        if producer.heard is not None:
            if producer.heard.is_answered:
                heard, then = producer.heard, producer.then
                producer.heard = producer.then = None
                assert then is not None
                then(heard)
            return
        written = len(self.world.log)
        if producer.phase == "init":
            self._init(producer)
        elif producer.phase == "ready":
            self.tags += 1
            producer.tag, producer.added, producer.phase = self.tags, set(), "open"
        elif producer.phase == "open" and how == "add":
            self._write(producer, place)
        else:
            self._end(producer, how == "commit")
        self._gather()
        if producer.is_fenced:
            assert len(self.world.log) == written, "somebody who was fenced has changed something"

    def _ask(self, producer: Producer, heard: Heard, then: Callable[[Heard], None]) -> None:
        if producer.is_fenced and heard.is_answered:
            assert heard.error is not ErrorCode.NONE
        producer.heard, producer.then = heard, then

    def _init(self, producer: Producer) -> None:
        is_first = producer.pair == (-1, -1)

        def then(heard: Heard) -> None:
            if heard.error is ErrorCode.NONE:
                producer.pair, producer.phase = heard.producer, "ready"
                if is_first:
                    self._fence(producer)
            else:
                self._failed(producer, heard.error)

        self._ask(producer, self.world.init(producer.transactional_id, producer.pair), then)

    def _fence(self, successor: Producer) -> None:
        for other in self.producers:
            # Later ids are larger, and so are later epochs. Who has not been answered yet may turn out to be later still.
            if other.transactional_id == successor.transactional_id and other.pair < successor.pair:
                other.is_fenced = other.pair != (-1, -1)

    def _write(self, producer: Producer, place: Place) -> None:
        """A batch for a partition, which becomes one of the transaction's first."""
        if place in producer.added:
            self._append(producer, place)
            return
        tag, pair = producer.tag, producer.pair

        def then(heard: Heard) -> None:
            if heard.error is ErrorCode.NONE:
                if producer.tag == tag and producer.phase == "open":
                    producer.added.add(place)
                    if producer.is_new:
                        self._append(producer, place)
            else:
                self._failed(producer, heard.error)

        version = 5 if producer.is_new else 3
        heard = self.world.add(pair, place, transactional_id=producer.transactional_id, version=version)
        self._ask(producer, heard, then)

    def _append(self, producer: Producer, place: Place) -> None:
        partition = self.partitions[place]
        if not producer.is_new and producer.pair[0] not in partition.open:
            # The leader asks whether this is a transaction's batch at all.
            verified = self.world.add(
                producer.pair, place, transactional_id=producer.transactional_id, version=5, verify=True
            )
            if not verified.is_answered or verified.partitions[place] is not ErrorCode.NONE:
                return
        appended = partition.append(producer.pair, producer.tag)
        assert not (appended and producer.is_fenced), (
            "a partition has taken a batch of somebody who was fenced"
        )

    def _end(self, producer: Producer, commit: bool) -> None:
        if producer.phase == "open":
            if not producer.added and (commit or not producer.is_new):
                producer.phase = "ready"
                return
            producer.phase, producer.commit = "ending", commit
        tag, wanted = producer.tag, producer.commit

        def then(heard: Heard) -> None:
            if heard.error is ErrorCode.NONE:
                assert self.outcomes.get(tag, wanted) == wanted, "partitions have heard of another end"
                self.acknowledged[tag] = wanted
                producer.phase = "ready"
                if producer.is_new:
                    producer.pair = heard.producer
            else:
                self._failed(producer, heard.error)

        heard = self.world.end(
            producer.pair,
            wanted,
            transactional_id=producer.transactional_id,
            version=5 if producer.is_new else 4,
        )
        self._ask(producer, heard, then)

    def _failed(self, producer: Producer, code: ErrorCode) -> None:
        if code in OVER:
            if producer in self.producers:
                self.producers.remove(producer)
        else:
            assert code.retriable, code

    # --- the world ----------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def count(self, data: Any) -> None:
        """Some of what was written counts."""
        self.world.count(data.draw(st.integers(self.world.counted, len(self.world.log))))
        self._gather()

    @rule()
    def count_all(self) -> None:
        self.world.count()
        self._gather()

    @rule(data=st.data())
    def move(self, data: Any) -> None:
        """The coordinator is lost, and some of what did not count yet with it."""
        world = self.world
        kept = data.draw(st.integers(world.counted, len(world.log)))
        before = dict(world.shard.transactions)
        is_all_kept = kept == len(world.log)
        world.move(kept)
        if is_all_kept:
            for name, each in before.items():
                # An end without partitions is carried out at once.
                assert each.is_prepared or world.entry(name) == each.entry
        self._gather()

    @precondition(lambda self: self.producers)
    @rule(data=st.data(), commit=st.booleans())
    def strike(self, data: Any, commit: bool) -> None:
        """A producer ends its transaction and dies; the coordinator does all that it can at once, and is lost with that."""
        producer = data.draw(st.sampled_from(self.producers))
        if producer.heard is None and producer.phase == "open":
            self._act(producer, A, "commit" if commit else "abort")
            self.producers.remove(producer)
            self._deliver_all()
            self.world.move()
            self._gather()

    @rule(ms=st.sampled_from([1, 50, 1_000, 9_000, 30_000, 71_000]))
    def wait(self, ms: int) -> None:
        self.world.advance(ms)
        self._gather()

    @rule(gives=st.booleans())
    def give_ids(self, gives: bool) -> None:
        self.world.gives_ids = gives
        waiting, self.world.waiting_for_ids = self.world.waiting_for_ids, []
        for done in waiting:
            done(self.world.fresh_id() if gives else None)

    def _gather(self) -> None:
        self.network += self.world.sent
        self.world.sent.clear()

    # --- markers ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.network)
    @rule(data=st.data(), fate=st.sampled_from(["answered", "answered", "answer lost", "late", "lost"]))
    def deliver(self, data: Any, fate: str) -> None:
        owed = self.network.pop(data.draw(st.integers(0, len(self.network) - 1)))
        if fate in ("answered", "answer lost"):
            codes = self._mark(owed)
            self.world.shard.markers_answered(owed, codes if fate == "answered" else {})
        else:
            self.world.shard.markers_answered(owed, {})
            # With version 1 a copy that comes later than its coordinator knows could end the next transaction: a
            # connection that is given up must not deliver any more. That is what version 2 is for.
            if fate == "late" and owed.marker.transaction_version >= 2:
                self.late.append(owed)
        self._gather()

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def deliver_late(self, data: Any) -> None:
        self._mark(self.late.pop(data.draw(st.integers(0, len(self.late) - 1))))

    def _deliver_all(self) -> None:
        self._gather()
        while self.network:
            owed = self.network.pop()
            self.world.shard.markers_answered(owed, self._mark(owed))
            self._gather()
            if owed.marker.transaction_version >= 2 and len(self.late) < 4:
                # Another copy of it is still under way, from an attempt that was given up.
                self.late.append(owed)

    def _mark(self, owed: MarkerRequest) -> dict[Place, ErrorCode]:
        codes = {}
        for place in owed.partitions:
            codes[place], tags = self.partitions[place].mark(owed.marker)
            for tag in tags:
                commit = owed.marker.commit
                assert self.outcomes.setdefault(tag, commit) == commit, "one transaction, two ends"
                assert self.acknowledged.get(tag, commit) == commit, "acknowledged, and ended otherwise"
        return codes

    # --- what must hold -----------------------------------------------------------------------------------------

    @rule()
    def calm(self) -> None:
        """Producers fall silent, nothing fails any more: after the time-outs nothing is open."""
        self.producers.clear()
        world = self.world
        self.give_ids(True)
        for _ in range(12):
            self.count_all()
            self._deliver_all()
            world.advance(10_000)
        for owed in self.late:
            self._mark(owed)
        self.late.clear()
        assert not [
            each.entry
            for each in world.shard.transactions.values()
            if each.state in (*PREPARED, State.ONGOING)
        ]
        assert (
            not world.shard.ongoing
            and not world.shard.completions.pending
            and not world.shard.awaiting_producer_id
        )
        for place, partition in self.partitions.items():
            assert not partition.open, f"{place} hangs"

    @invariant()
    def what_was_told_is_what_happened(self) -> None:
        if hasattr(self, "world"):
            for tag, commit in self.acknowledged.items():
                assert self.outcomes.get(tag, commit) == commit

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.calm()


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


# --- a coordinator that is lost at every step --------------------------------------------------------------------


#: So many there are when nothing is lost.
STEPS = 16


class Steps:
    """One producer's transaction, step by step, with a coordinator that is lost once, after one of the steps."""

    def __init__(self, lost_after: int, keeps: bool, epoch: int) -> None:
        self.world = World()
        self.world.put(
            Entry(7, epoch, 60_000, State.EMPTY, WALL_MS, previous_producer_id=7, client_version=2)
        )
        self.world.counts_at_once = False
        self.left = lost_after
        self.keeps = keeps
        self.marked: dict[Place, set[bool]] = {A: set(), B: set()}

    def step(self) -> None:
        """Something has happened; perhaps it is the last that this coordinator did."""
        if self.left == 0:
            self.world.sent.clear()
            self.world.move(len(self.world.log) if self.keeps else None)
        self.left -= 1

    def insist(self, ask: Callable[[], Heard]) -> Heard:
        """Ask until the answer is one; every attempt, and every record that counts, is a step."""
        for _ in range(20):
            heard = ask()
            self.step()
            self.world.count()
            self.step()
            self.deliver()
            if heard.is_answered and not heard.error.retriable:
                return heard
            self.world.advance(100)
        raise AssertionError("no answer")

    def deliver(self) -> None:
        """The partitions have their markers one by one."""
        while self.world.sent:
            owed = self.world.sent.pop()
            for place in owed.partitions:
                self.marked[place].add(owed.marker.commit)
            self.step()
            self.world.shard.markers_answered(owed, dict.fromkeys(owed.partitions, ErrorCode.NONE))
            self.step()
            self.world.count()
            self.step()


@pytest.mark.parametrize("keeps", [True, False], ids=["tail kept", "tail lost"])
@pytest.mark.parametrize("lost_after", range(STEPS + 1))
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("epoch", [3, EPOCH_MAX - 2], ids=["young", "worn"])
@pytest.mark.parametrize(("adds", "ends"), [(3, 4), (5, 5)], ids=["v1", "v2"])
def test_every_step(adds: int, ends: int, epoch: int, commit: bool, lost_after: int, keeps: bool) -> None:
    steps = Steps(lost_after, keeps, epoch)
    world = steps.world
    pair = steps.insist(world.init).producer
    for place in (A, B):
        assert steps.insist(lambda place=place: world.add(pair, place, version=adds)).error is ErrorCode.NONE  # type: ignore[misc]
    ended = steps.insist(lambda: world.end(pair, commit, version=ends))
    assert ended.error is ErrorCode.NONE
    following = ended.producer if ends == 5 else pair
    steps.deliver()
    world.advance(100)
    steps.deliver()
    assert world.state() is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    assert steps.marked == {A: {commit}, B: {commit}}
    # And the producer goes on.
    assert steps.insist(lambda: world.add(following, A, version=adds)).error is ErrorCode.NONE
    assert world.state() is State.ONGOING
    assert (steps.left == 0) == (lost_after == STEPS), "there are other steps than these"
