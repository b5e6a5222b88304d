"""Bugs that are patched into the core, each of which the simulator must find within a few seeds.

Nothing in `src/` knows them. A bug that is found later than its bound, or not at all, means that the
simulator has become blind to it. Then repair faults, clients or invariants, not the bound.
`tests/sim/test_deliberate_bugs.py` tries the bugs that are found at once,
`tests/chaos/test_deliberate_bugs.py` the others.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from ottla.broker.cluster.broker_lifecycle import BrokerLifecycle
from ottla.broker.coordinators.coordinator_partition import CoordinatorPartition
from ottla.broker.coordinators.group_coordinator import GroupPartition
from ottla.broker.coordinators.txn_verification import TxnVerification
from ottla.groups.classic import ClassicProtocol
from ottla.groups.classic_group import ClassicGroup
from ottla.groups.consumer import ConsumerProtocol
from ottla.groups.consumer_group import ConsumerGroup
from ottla.groups.member_lifecycle import MemberLifecycle as ConsumerMembership
from ottla.groups.rebalance import ClassicRebalance
from ottla.log.partition_log import PartitionLog
from ottla.log.producers import Producers as LogProducers
from ottla.model.errors import ErrorCode
from ottla.ports.coordination import Decision, WhenCommitted
from ottla.replication.follower_state import FollowerState
from ottla.replication.isr_updates import IsrUpdates
from ottla.replication.leader_state import LeaderState
from ottla.replication.replica import Replica
from ottla.replication.replica_fetcher import ReplicaFetcher
from ottla.transactions import end_txn
from ottla.transactions.completion import PendingCompletions
from ottla.transactions.end_txn import EndTxnHandler
from ottla.transactions.host import MarkerRequest
from ottla.transactions.shard import Shard as TransactionShard
from ottla.transactions.transaction import ProducerMatch, Transaction
from testkit.sim.cluster import ClusterOptions, run_cluster
from testkit.sim.desk import Desk
from testkit.sim.ensemble import Ensemble
from testkit.sim.scenario import Failure

Patch = Callable[[pytest.MonkeyPatch], None]


def truncate_by_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """R1: a new follower truncates its log to its own high watermark, as before KIP-101."""
    add = ReplicaFetcher.add

    def cut_and_add(self: ReplicaFetcher, following: FollowerState) -> None:
        replica = following.replica
        if replica.opened and replica.high_watermark < replica.log.next_offset:
            replica.log.truncate(replica.high_watermark, self._host.wall_ms)
        add(self, following)

    patch.setattr(ReplicaFetcher, "add", cut_and_add)


def acknowledge_before_the_isr_has_it(patch: pytest.MonkeyPatch) -> None:
    """R3: the leader's log end is the high watermark."""
    patch.setattr(LeaderState, "bound", lambda _self, end: end)


def shrink_the_isr_without_the_store(patch: pytest.MonkeyPatch) -> None:
    """R4: the leader removes slow followers from the ISR by itself."""
    request = IsrUpdates.request

    def shrink(self: IsrUpdates, replica: Replica, members: tuple[int, ...]) -> None:
        leading = replica.leading
        if leading is not None and len(members) < len(leading.isr):
            leading.isr = members
            leading._count()
            self._host.advance(replica)
        else:
            request(self, replica, members)

    patch.setattr(IsrUpdates, "request", shrink)


def skip_the_controllers_fence(patch: pytest.MonkeyPatch) -> None:
    """R6: a former controller can still write."""
    patch.setattr(Ensemble, "is_controller_epoch", lambda _self, _epoch: True)


def trust_an_unclean_restart(patch: pytest.MonkeyPatch) -> None:
    """R7: every broker claims a clean shutdown."""
    join = BrokerLifecycle.join

    def join_as_if_clean(self: BrokerLifecycle, now_ms: int, done: Any) -> None:
        register = self._register

        def register_as_if_clean() -> None:
            self._is_clean = True
            register()

        self._register = register_as_if_clean  # type: ignore[method-assign]
        join(self, now_ms, done)

    patch.setattr(BrokerLifecycle, "join", join_as_if_clean)


def forget_an_epoch_without_records(patch: pytest.MonkeyPatch) -> None:
    """R1: an epoch without records is not stored in its leader's log."""
    patch.setattr(PartitionLog, "lead", lambda _self, _epoch: None)


def commit_with_too_few(patch: pytest.MonkeyPatch) -> None:
    """R3: the high watermark advances although the ISR is smaller than `min.insync.replicas`."""

    def bound(self: LeaderState, end: int) -> int:
        return min(end, *(follower.end for follower in self.counted), end)

    patch.setattr(LeaderState, "bound", bound)


def report_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    """R11: a follower fetches further before its records are synced."""
    patch.setattr(ReplicaFetcher, "wait_for", lambda _self, _replica: None)


# --- groups ---------------------------------------------------------------------------------------------------------


def answer_before_it_counts(patch: pytest.MonkeyPatch) -> None:
    """A commit, or whatever else a coordinator writes, is answered before the high watermark has passed it."""
    schedule = CoordinatorPartition.schedule

    def answer_at_once(self: CoordinatorPartition, decision: Decision[Any]) -> None:
        schedule(self, decision._replace(answers=()))
        for reply, response in decision.answers:
            reply.answer(response)

    patch.setattr(CoordinatorPartition, "schedule", answer_at_once)


def read_what_may_be_lost(patch: pytest.MonkeyPatch) -> None:
    """What was written is shown before it counts."""
    schedule = CoordinatorPartition.schedule

    def show(self: CoordinatorPartition, decision: Decision[Any]) -> None:
        schedule(self, decision if decision.records else decision._replace(is_read=False))

    patch.setattr(CoordinatorPartition, "schedule", show)


def serve_an_empty_shard(patch: pytest.MonkeyPatch) -> None:
    """A new coordinator does not read its log."""
    for kind in (CoordinatorPartition, GroupPartition):
        patch.setattr(kind, "replay", lambda _self, _records: None)


def commit_in_any_generation(patch: pytest.MonkeyPatch) -> None:
    """A member commits whatever generation it is in."""
    check = ClassicProtocol.check_commit

    def check_commit(
        self: ClassicProtocol,
        group: ClassicGroup,
        _generation: int,
        member_id: str,
        instance_id: str | None,
        now_ms: int,
    ) -> ErrorCode:
        return check(self, group, group.generation, member_id, instance_id, now_ms)

    patch.setattr(ClassicProtocol, "check_commit", check_commit)


def commit_in_any_epoch(patch: pytest.MonkeyPatch) -> None:
    """Anybody commits, in any epoch (KIP-848)."""
    patch.setattr(ConsumerProtocol, "check_epoch", lambda *_arguments: ErrorCode.NONE)


def give_what_another_still_has(patch: pytest.MonkeyPatch) -> None:
    """A member's partitions are assigned to another before they are revoked."""
    patch.setattr(ConsumerGroup, "free_for", lambda _self, _member_id: lambda places: places)


def begin_no_sessions_after_loading(patch: pytest.MonkeyPatch) -> None:
    """Members that never come back to a new coordinator are kept for ever."""
    patch.setattr(ClassicProtocol, "resume", lambda *_arguments: None)
    patch.setattr(ConsumerMembership, "resume", lambda *_arguments, **_more: None)


def begin_a_generation_without_those_who_are_late(patch: pytest.MonkeyPatch) -> None:
    """A rebalance waits for nobody: whoever has joined makes the next generation."""
    patch.setattr(ClassicGroup, "has_all_joined", property(lambda self: True))


def hand_out_an_unwritten_assignment(patch: pytest.MonkeyPatch) -> None:
    """The leader's assignment is not written down."""
    assign = ClassicRebalance.assign

    def forget(self: ClassicRebalance, *arguments: Any) -> None:
        host = self._host

        class Forgetful:
            def schedule(self, decision: Decision[Any]) -> None:
                host.schedule(decision._replace(records=()))

            def __getattr__(self, name: str) -> Any:
                return getattr(host, name)

        self._host = Forgetful()  # type: ignore[assignment]
        try:
            assign(self, *arguments)
        finally:
            self._host = host

    patch.setattr(ClassicRebalance, "assign", forget)


# --- transactions -----------------------------------------------------------------------------------------------------


def count_markers_that_were_not_written(patch: pytest.MonkeyPatch) -> None:
    """R18: whatever a broker says of its markers, or if it says nothing, they count as written."""
    answered = PendingCompletions.answered

    def believe(self: PendingCompletions, owed: MarkerRequest, _codes: Any) -> None:
        answered(self, owed, dict.fromkeys(owed.partitions, ErrorCode.NONE))

    patch.setattr(PendingCompletions, "answered", believe)


def leave_an_end_to_who_decided_it(patch: pytest.MonkeyPatch) -> None:
    """R18: a coordinator that loads PrepareCommit or PrepareAbort does not go on with it."""
    patch.setattr(TransactionShard, "_resume_completions", lambda _self, _prepared: None)


def carry_out_an_end_before_it_counts(patch: pytest.MonkeyPatch) -> None:
    """R18: markers are sent before Prepare… is committed."""
    write = TransactionShard.write

    def write_and_go_on(self: TransactionShard, records: Any, answers: Any = ()) -> None:
        write(self, records, [each for each in answers if not isinstance(each[0], WhenCommitted)])
        for reply, response in answers:
            if isinstance(reply, WhenCommitted):
                reply.answer(response)

    patch.setattr(TransactionShard, "write", write_and_go_on)


def verify_nothing(patch: pytest.MonkeyPatch) -> None:
    """R17: the leader assumes that partitions were added (transactions v1)."""
    verify = TxnVerification.verify

    def believe(self: TxnVerification, producer: Any, replicas: Any, *, adds: bool, done: Any) -> None:
        if adds:
            verify(self, producer, replicas, adds=adds, done=done)
        else:
            done(dict.fromkeys(replicas, ErrorCode.NONE))

    patch.setattr(TxnVerification, "verify", believe)


def read_beyond_the_last_stable_offset(patch: pytest.MonkeyPatch) -> None:
    """R19: the last stable offset is the high watermark."""
    patch.setattr(PartitionLog, "last_stable_offset", lambda _self, high_watermark: high_watermark)


def tell_nobody_of_aborted_transactions(patch: pytest.MonkeyPatch) -> None:
    """R19: a response has no list of aborted transactions."""
    patch.setattr(PartitionLog, "aborted", lambda *_arguments: [])


def keep_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """R17: the end of a transaction v2 does not raise the epoch."""
    patch.setattr(end_txn, "min", lambda raised, _most: raised - 1, raising=False)


def take_markers_of_any_coordinator(patch: pytest.MonkeyPatch) -> None:
    """R18: the coordinator epoch of a marker is not checked."""
    check = LogProducers.check_marker

    def check_marker(
        self: LogProducers, producer_id: int, epoch: int, _coordinator: int, **more: bool
    ) -> None:
        check(self, producer_id, epoch, 1 << 30, **more)

    patch.setattr(LogProducers, "check_marker", check_marker)


def take_markers_of_any_epoch(patch: pytest.MonkeyPatch) -> None:
    """R17: a marker may belong to an earlier transaction of its producer."""
    patch.setattr(LogProducers, "check_marker", lambda *_arguments, **_more: None)


def forget_pending_offsets(patch: pytest.MonkeyPatch) -> None:
    """R16: a group coordinator that loads ignores pending transactional offsets."""
    patch.setattr(GroupPartition, "replay_transactional", lambda *_arguments: None)


def wait_for_ever(patch: pytest.MonkeyPatch) -> None:
    """R19: transactions whose time is over go on. It shows where a producer dies for good with an open
    transaction.
    """
    patch.setattr(EndTxnHandler, "abort_timed_out", lambda *_arguments: True)
    patch.setattr(Desk, "killed_at_last", 1.0)


def fence_nobody(patch: pytest.MonkeyPatch) -> None:
    """R15: who comes under a known name has the epoch of the one before."""
    standing = Transaction.match_producer

    def same(self: Transaction, producer_id: int, producer_epoch: int) -> ProducerMatch:
        found = standing(self, producer_id, producer_epoch)
        is_before = producer_id == self.entry.producer_id and found is ProducerMatch.FENCED
        return ProducerMatch.CURRENT if is_before else found

    patch.setattr(Transaction, "match_producer", same)


#: Leaders change again and again while few of them write anything.
_ELECTIONS = ClusterOptions(
    faults=100, brokers=3, kinds=("suspect", "usurp", "one_way", "slow_link", "expire"), transactions=False
)
_DEATHS = ClusterOptions(
    faults=60, brokers=3, kinds=("kill", "isolate", "pause", "one_way"), transactions=False
)
_POWER = ClusterOptions(faults=40, brokers=3, kinds=("cut_power", "expire", "suspect"), transactions=False)
_CONTROL = ClusterOptions(kinds=("usurp", "kill", "suspect", "isolate"), transactions=False)
_GROUPS = ClusterOptions(brokers=3, groups=True, transactions=False)
#: Coordinators move again and again.
_MOVES = ClusterOptions(
    brokers=3,
    faults=40,
    groups=True,
    transactions=False,
    kinds=("kill", "suspect", "isolate", "one_way", "stop"),
)
#: Coordinators write without followers, and are deposed before they know it.
_CUTS = ClusterOptions(
    brokers=3, faults=60, groups=True, transactions=False, kinds=("one_way", "isolate", "split", "suspect")
)


_TRANSACTIONS = ClusterOptions(brokers=3, transactions=True, groups=False)
#: Coordinators and leaders move again and again, and requests to them arrive late.
_ENDS = ClusterOptions(
    brokers=3, faults=40, transactions=True, groups=False,
    kinds=("kill", "suspect", "isolate", "one_way", "stop", "cut_client", "pause"),
)  # fmt: skip


class Bug(NamedTuple):
    patch: Patch
    #: A multiple of the seeds that it took when the bound was set: runs change with the code.
    seeds_max: int
    options: ClusterOptions = ClusterOptions(transactions=False)


BUGS = (
    Bug(truncate_by_high_watermark, 30),
    Bug(acknowledge_before_the_isr_has_it, 5),
    Bug(shrink_the_isr_without_the_store, 10),
    Bug(skip_the_controllers_fence, 80, _CONTROL),
    Bug(trust_an_unclean_restart, 20, _POWER),
    Bug(forget_an_epoch_without_records, 60, _ELECTIONS),
    Bug(commit_with_too_few, 80, _DEATHS),
    Bug(report_before_it_is_durable, 20),
    Bug(answer_before_it_counts, 40, _MOVES),
    Bug(read_what_may_be_lost, 120, _CUTS),
    Bug(serve_an_empty_shard, 3, _MOVES),
    Bug(commit_in_any_generation, 25, _GROUPS),
    Bug(commit_in_any_epoch, 15, _GROUPS),
    Bug(give_what_another_still_has, 15, _GROUPS),
    Bug(begin_no_sessions_after_loading, 25, _MOVES),
    Bug(begin_a_generation_without_those_who_are_late, 10, _GROUPS),
    Bug(hand_out_an_unwritten_assignment, 5, _MOVES),
    Bug(count_markers_that_were_not_written, 15, _ENDS),
    Bug(leave_an_end_to_who_decided_it, 10, _ENDS),
    Bug(carry_out_an_end_before_it_counts, 5, _ENDS),
    Bug(verify_nothing, 20, _ENDS),
    Bug(read_beyond_the_last_stable_offset, 3, _TRANSACTIONS),
    Bug(tell_nobody_of_aborted_transactions, 3, _TRANSACTIONS),
    Bug(keep_the_epoch, 10, _ENDS),
    Bug(take_markers_of_any_coordinator, 15, _ENDS),
    Bug(take_markers_of_any_epoch, 5, _TRANSACTIONS),
    Bug(forget_pending_offsets, 10, _ENDS),
    Bug(wait_for_ever, 5, _TRANSACTIONS),
    Bug(fence_nobody, 5, _TRANSACTIONS),
)


#: Bugs that need at most this many seeds are searched for with every change.
_FEW = 5
FOUND_AT_ONCE = tuple(bug for bug in BUGS if bug.seeds_max <= _FEW)
FOUND_LATER = tuple(bug for bug in BUGS if bug.seeds_max > _FEW)
WITHOUT_BUGS = {
    "elections": _ELECTIONS,
    "deaths": _DEATHS,
    "power": _POWER,
    "control": _CONTROL,
    "groups": _GROUPS,
    "moves": _MOVES,
    "cuts": _CUTS,
    "ends": _ENDS,
}


def find(bug: Bug, patch: pytest.MonkeyPatch) -> None:
    """Fails unless the bug is found within its bound of seeds."""
    bug.patch(patch)
    for seed in range(1, bug.seeds_max + 1):
        try:
            run_cluster(seed, bug.options)
        except Failure as failure:
            if failure.kind == "crash":
                raise
            print(f"{bug.patch.__name__} in seed {seed}: {str(failure)[:300]}")
            return
    pytest.fail(f"{bug.patch.__name__} was not found in {bug.seeds_max} seeds")
