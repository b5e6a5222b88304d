"""A cluster that lives at random, decided upon by the controller's functions, and what must hold whatever happens.

Beside the image the model knows what the controller cannot see: which replicas have all that was committed. It takes the worst
case everywhere. While the ISR is large enough the high watermark moves, and whoever is outside of it falls behind; a crash takes
what was not flushed; who joins the ISR has caught up. Whoever is elected must have everything, unless nobody has or an
unclean election was allowed (R3, R7).
"""

from typing import Any

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ottla.config.broker import BrokerConfig
from ottla.controller.broker_changes import broker_gone, broker_stopping, reconcile, void_eligible
from ottla.controller.isr import Wish, alter_isr
from ottla.controller.leader_election import min_isr_of, rules_of
from ottla.controller.preferred_election import PREFERRED, UNCLEAN, balance, elect
from ottla.controller.reassignment import cancel, reassign
from ottla.metadata import records as r
from ottla.metadata.image import TOPIC_RESOURCE, Image
from ottla.model.errors import Refusal
from ottla.ports.store import Registration

NODES = (1, 2, 3, 4)
CONFIG = BrokerConfig.from_properties(
    {"log.dirs": "/x", "node.id": "1", "leader.imbalance.per.broker.percentage": "0"}
)
#: By topic: its settings. Two partitions each.
TOPICS = {
    "two": {"flush.policy": "page-cache", "min.insync.replicas": "2"},
    "one": {"flush.policy": "page-cache", "min.insync.replicas": "1"},
    "durable": {"flush.policy": "durable", "min.insync.replicas": "2"},
    "unclean": {"flush.policy": "page-cache", "unclean.leader.election.enable": "true"},
}
nodes = st.sampled_from(NODES)
names = st.sampled_from(sorted(TOPICS))
numbers = st.integers(0, 1)


def id_of(name: str) -> bytes:
    return name.encode().ljust(16)


class Cluster(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        made: list[r.Record] = [r.BrokerRegistration(node, node, "h", 1) for node in NODES]
        for name, overrides in TOPICS.items():
            made.append(r.Topic(name, id_of(name)))
            made += [r.Config(TOPIC_RESOURCE, name, key, value) for key, value in overrides.items()]
            made.append(r.NewPartitions(id_of(name), 0, ((1, 2, 3), (3, 4))))
        self.image = Image().apply(made)
        self.live = {node: Registration(node, "h", 1, None, (), "i", True, node) for node in NODES}
        self.epoch = 100
        #: The last life of each broker.
        self.life = {node: node for node in NODES}
        #: Replicas that have all that was committed, by partition.
        self.whole = {each[:2]: set(each.isr) for each in self.partitions()}
        #: Who led in which epoch.
        self.led: dict[tuple[bytes, int, int], int] = {}
        self.may_be_unclean = False

    # --- what happens -----------------------------------------------------------------------------------------

    @rule(gone=st.sets(nodes, min_size=1, max_size=3), cut=st.floats(0, 1))
    def die(self, gone: set[int], cut: float) -> None:
        for node in gone:
            self.live.pop(node, None)
        self.reconcile(cut)

    @rule(came=st.sets(nodes, min_size=1, max_size=4), clean=st.booleans(), cut=st.floats(0, 1))
    def come(self, came: set[int], clean: bool, cut: float) -> None:
        """A restart, also of one whose end nobody has noticed. Clean says that the life the image knows ended well."""
        for node in sorted(came):
            self.epoch += 1
            is_clean = clean and self.image.brokers[node].epoch == self.life[node]
            self.live[node] = Registration(node, "h", 1, None, (), "i", is_clean, self.epoch)
            self.life[node] = self.epoch
            if not clean:
                for each in self.partitions():
                    if not self.settings_of(each).durable:
                        self.whole[each[:2]].discard(node)
        self.reconcile(cut)

    @rule(node=nodes)
    def be_suspected(self, node: int) -> None:
        self.apply(broker_gone(self.image, CONFIG, node))

    @rule(node=nodes)
    def stop(self, node: int) -> None:
        assume(node in self.live and not self.image.brokers[node].fenced)
        self.apply(broker_stopping(self.image, CONFIG, node))

    @rule(name=names, number=numbers, wanted=st.sets(nodes), behind=st.integers(0, 1))
    def alter(self, name: str, number: int, wanted: set[int], behind: int) -> None:
        old = self.partition(name, number)
        assume(old.leader != -1)
        isr = wanted.intersection(old.replicas) | {old.leader}
        epochs = {node: self.image.brokers[node].epoch for node in isr}
        wish = Wish(old.leader, old.leader_epoch, old.partition_epoch - behind, epochs)
        joining = [node for node in isr if node not in old.isr]
        if behind or not all(map(self.image.is_live, joining)):
            with pytest.raises(Refusal):
                alter_isr(self.image, self.settings_of(old), old, wish)
            return
        new = alter_isr(self.image, self.settings_of(old), old, wish)
        self.whole[old[:2]] |= isr
        self.apply([new] if new is not old else [])

    @rule(name=names, number=numbers, data=st.data())
    def leave(self, name: str, number: int, data: st.DataObject) -> None:
        """A member's log directory failed."""
        old = self.partition(name, number)
        assume(old.leader != -1)
        node = data.draw(st.sampled_from(old.isr))
        isr = set(old.isr) - {node}
        assume(any(map(self.image.is_live, isr)))
        epochs = {each: self.image.brokers[each].epoch for each in isr}
        wish = Wish(node, old.leader_epoch, old.partition_epoch, epochs)
        self.whole[old[:2]].discard(node)
        new = alter_isr(self.image, self.settings_of(old), old, wish)
        assert node not in (new.leader, *new.isr, *new.eligible)
        self.apply([new])

    @rule(name=names, number=numbers, goal=st.lists(nodes, min_size=1, max_size=4, unique=True))
    def move(self, name: str, number: int, goal: list[int]) -> None:
        old = self.partition(name, number)
        new = reassign(self.image, self.settings_of(old), old, goal)
        assert set(goal) <= set(new.replicas)
        self.apply([new] if new is not old else [], may_move=True)

    @rule(name=names, number=numbers)
    def take_back(self, name: str, number: int) -> None:
        old = self.partition(name, number)
        if not (old.adding or old.removing):
            with pytest.raises(Refusal):
                cancel(self.image, self.settings_of(old), old)
            return
        try:
            new = cancel(self.image, self.settings_of(old), old)
        except Refusal:
            # Only those that were added have everything.
            assert not self.whole[old[:2]].difference(old.adding)
            return
        self.apply([new], may_move=True)

    @rule(name=names, number=numbers, kind=st.sampled_from((PREFERRED, UNCLEAN)))
    def elect(self, name: str, number: int, kind: int) -> None:
        old = self.partition(name, number)
        try:
            new = elect(self.image, self.settings_of(old), old, kind)
        except Refusal:
            return
        self.may_be_unclean = kind == UNCLEAN
        self.apply([new])
        self.may_be_unclean = False

    @rule()
    def balance(self) -> None:
        records = balance(self.image, CONFIG)
        self.apply(records)
        assert balance(self.image, CONFIG) == []

    @rule(name=names, number=st.integers(1, 3))
    def set_min_isr(self, name: str, number: int) -> None:
        """The setting counts for the leaders before the controller has seen to the eligible."""
        self.image = self.image.apply([r.Config(TOPIC_RESOURCE, name, "min.insync.replicas", str(number))])
        self.commit()
        self.apply(void_eligible(self.image, self.image, CONFIG, [name]))
        self.reconcile(1)

    # --- how it is done ---------------------------------------------------------------------------------------

    def partitions(self) -> list[r.Partition]:
        return [each for topic in self.image.topics.values() for each in topic.partitions]

    def partition(self, name: str, number: int) -> r.Partition:
        return self.image.topics[name].partitions[number]

    def settings_of(self, partition: r.Partition) -> Any:
        return rules_of(self.image, CONFIG, self.image.topics_by_id[partition.topic_id].name)

    def reconcile(self, cut: float) -> None:
        """The controller may die when some of its records are written; the next one finishes."""
        records = reconcile(self.image, CONFIG, self.live)
        kept = int(cut * len(records))
        if kept < len(records):
            self.apply(records[:kept])
        self.apply(reconcile(self.image, CONFIG, self.live))
        assert reconcile(self.image, CONFIG, self.live) == []

    def apply(self, records: list[r.Record], *, may_move: bool = False) -> None:
        for record in records:
            if isinstance(record, r.Partition):
                self.check_change(self.image.partition(record.topic_id, record.partition), record, may_move)
        self.image = self.image.apply(records)
        self.commit()

    def commit(self) -> None:
        """The worst case: whatever can be committed is, and only the ISR has it. Also by brokers that are gone, until the image says so."""
        acting = {
            node
            for node, broker in self.image.brokers.items()
            if broker.epoch == self.life[node] and not broker.fenced
        }
        for each in self.partitions():
            is_large_enough = len(each.isr) >= min_isr_of(self.settings_of(each), each.replicas)
            if each.leader != -1 and is_large_enough and acting.issuperset(each.isr):
                self.whole[each[:2]] = set(each.isr)

    def check_change(self, old: r.Partition | None, new: r.Partition, may_move: bool) -> None:
        assert old is not None
        assert new.partition_epoch == old.partition_epoch + 1
        assert old.leader_epoch <= new.leader_epoch <= old.leader_epoch + 1
        assert new.leader == old.leader or new.leader_epoch > old.leader_epoch
        if new.leader != -1:
            assert self.led.setdefault((*new[:2], new.leader_epoch), new.leader) == new.leader, (
                "two leaders in an epoch"
            )
        if not may_move:
            # Completing takes away those that go; nobody comes.
            gone = set(old.replicas).difference(new.replicas)
            assert set(new.replicas) <= set(old.replicas) and gone <= set(old.removing)
        whole = self.whole[new[:2]].intersection(new.replicas)
        if new.leader != -1 and new.leader not in whole:
            assert not whole or self.settings_of(new).unclean or self.may_be_unclean, (
                "an election lost what was committed"
            )
            self.whole[new[:2]] = {new.leader}

    # --- what must hold ---------------------------------------------------------------------------------------

    @invariant()
    def members_make_sense(self) -> None:
        for each in self.partitions():
            assert each.leader in each.isr or each.leader == -1
            assert set(each.isr) <= set(each.replicas) >= set(each.eligible)
            assert not set(each.isr) & set(each.eligible)
            assert each.isr or each.eligible, "nobody is left to wait for"
            assert each.isr or each.leader == -1
            assert set(each.adding) | set(each.removing) <= set(each.replicas)
            assert (each.last_leader == -1) == (each.leader != -1)
            assert len(set(each.replicas)) == len(each.replicas)

    @invariant()
    def who_counts_has_everything(self) -> None:
        for each in self.partitions():
            members = set(each.isr)
            if len(each.isr) < min_isr_of(self.settings_of(each), each.replicas):
                members.update(each.eligible)
            assert members <= self.whole[each[:2]], each

    @invariant()
    def fenced_brokers_are_in_no_isr_and_nobody_waits_without_need(self) -> None:
        for each in self.partitions():
            assert not any(self.image.brokers[node].fenced for node in each.isr)
            if each.leader == -1:
                assert not any(map(self.image.is_live, (*each.isr, *each.eligible)))
                assert not self.settings_of(each).unclean or not any(map(self.image.is_live, each.replicas))
            elif not self.image.is_live(each.leader):
                assert not any(map(self.image.is_live, each.isr)), "it stops and another could lead"


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=60, stateful_step_count=40)
