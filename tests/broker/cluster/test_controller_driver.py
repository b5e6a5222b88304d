"""The active controller on a pure core: what it proposes and when, and when it must not decide."""

from collections.abc import Callable
from typing import Any

import pytest

from ottla.broker.core import Broker
from ottla.config.broker import BrokerConfig
from ottla.metadata import records as r
from ottla.metadata.image import TOPIC_RESOURCE
from ottla.ports.effects import PROPOSE, SNAPSHOT
from ottla.ports.store import Registration
from ottla.runtime.disk import SystemDisk
from tests.broker.conftest import SeededEntropy

T = b"t" * 16
NOW = 1_700_000_000_000


class Controller:
    """A broker of a cluster as its own store: proposals wait until a test commits or refuses them."""

    def __init__(self, directory: str, settings: dict[str, str]) -> None:
        self.said: list[str] = []
        self.now_ms = NOW
        properties = {
            "listeners": "PLAINTEXT://127.0.0.1:9092",
            "node.id": "1",
            "log.dirs": directory,
            **settings,
        }
        self.broker = Broker(
            BrokerConfig.from_properties(properties),
            SystemDisk(),
            SeededEntropy(1),
            say=self.said.append,
            clustered=True,
        )
        self.broker.now_ms = NOW
        self.broker.cluster_id = "the-cluster"
        self.snapshots: list[Any] = []
        self.proposals: list[Any] = []

    @property
    def controller_driver(self) -> Any:
        return self.broker.controller_driver

    def begin(self, *partitions: r.Partition, brokers: tuple[int, ...] = (1, 2, 3)) -> None:
        """An image with live brokers, each with its number as its broker epoch."""
        made: list[r.Record] = [r.Cluster("the-cluster")]
        made += [r.BrokerRegistration(node, node, "h", 9092) for node in brokers]
        made += [r.Topic("t", T), *(each._replace(partition=at) for at, each in enumerate(partitions))]
        self.broker.image = self.broker.image.apply(made)
        self.live(*brokers)

    def live(self, *nodes: int, **lives: int) -> None:
        """Registrations: by number, or broker_2=50 for another broker epoch."""
        epochs = {node: node for node in nodes} | {int(name[7:]): epoch for name, epoch in lives.items()}
        self.broker.lifecycle.live = {
            node: Registration(node, "h", 9092, None, (), "i", True, epoch) for node, epoch in epochs.items()
        }

    def perform(self) -> list[list[r.Record]]:
        """Take the effects; the records of the proposals among them."""
        outbox, self.broker.outbox = self.broker.outbox, []
        fresh = [effect for effect in outbox if effect[0] == PROPOSE]
        self.proposals += fresh
        self.snapshots += [effect for effect in outbox if effect[0] == SNAPSHOT]
        return [effect[1] for effect in fresh]

    def commit(self) -> None:
        self.perform()
        held, self.proposals = self.proposals, []
        for _kind, records, done in held:
            self.broker.image = self.broker.image.apply(records)
            self.controller_driver.follow(records, self.now_ms)
            done(None)

    def refuse(self, error: str = "another controller") -> None:
        self.perform()
        held, self.proposals = self.proposals, []
        self.broker.rejected()
        for _kind, _records, done in held:
            done(error)

    def take_over(self) -> None:
        self.controller_driver.take_over(7, self.now_ms)
        self.commit()

    def advance(self, ms: int) -> None:
        end = self.now_ms + ms
        while (deadline := self.broker.next_deadline_ms) is not None and deadline <= end:
            self.now_ms = max(self.now_ms, deadline)
            self.broker.tick(self.now_ms)
        self.now_ms = end

    @property
    def leaders(self) -> list[int]:
        return [each.leader for each in self.broker.image.topics["t"].partitions]


@pytest.fixture
def controller(tmp_path: Any) -> Callable[..., Controller]:
    return lambda **settings: Controller(
        str(tmp_path / "data"), {name.replace("_", "."): value for name, value in settings.items()}
    )


def part(*replicas: int, **more: Any) -> r.Partition:
    return r.Partition(T, 0, replicas, more.pop("isr", replicas), more.pop("leader", replicas[0]), **more)


def test_a_standalone_broker_is_always_the_controller(driver: Any) -> None:
    controlling = driver.broker.controller_driver
    assert (controlling.is_active, controlling.may_decide, controlling.epoch) == (True, True, 0)
    controlling.resign()
    assert controlling.is_active


def test_the_first_controller_of_a_cluster_proposes_the_cluster_id(controller: Any) -> None:
    c = controller()
    c.live(1, 2)
    assert not c.controller_driver.is_active
    c.controller_driver.take_over(7, NOW)
    assert (c.controller_driver.is_active, c.controller_driver.epoch) == (True, 7)
    assert [record for records in c.perform() for record in records] == [
        r.Cluster("the-cluster"), r.Config(4, "", "min.insync.replicas", "1"),
        r.BrokerRegistration(1, 1, "h", 9092), r.BrokerRegistration(2, 2, "h", 9092),
    ]  # fmt: skip
    c.commit()
    assert c.broker.image.cluster_id == "the-cluster" and c.broker.image.is_live(2)


def test_a_new_controller_catches_up_on_changes_without_a_controller(controller: Any) -> None:
    c = controller()
    c.begin(part(2, 1, 3), part(3, 1))
    c.live(1, 3)
    c.take_over()
    assert c.leaders == [1, 3]
    assert c.broker.image.brokers[2].fenced


def test_a_broker_that_is_not_the_controller_decides_nothing(controller: Any) -> None:
    c = controller()
    c.begin(part(2, 1, 3))
    c.live(1, 3)
    c.controller_driver.live_changed(NOW)
    c.controller_driver.suspect(3, NOW)
    c.controller_driver.follow([r.Config(TOPIC_RESOURCE, "t", "min.insync.replicas", "1")], NOW)
    assert c.perform() == []


def test_a_decision_builds_on_proposals_that_are_not_committed_yet(controller: Any) -> None:
    c = controller()
    c.begin(part(1, 2, 3))
    c.take_over()
    c.live(1, 3)
    c.controller_driver.live_changed(NOW)
    [first] = c.perform()
    c.controller_driver.live_changed(NOW)
    assert c.perform() == []
    c.live(1)
    c.controller_driver.live_changed(NOW)
    [second] = c.perform()
    assert [each.partition_epoch for each in (first[0], second[0])] == [1, 2]
    c.commit()
    assert c.broker.image.topics["t"].partitions[0].isr == (1,)


def test_a_suspect_is_fenced_at_once_until_it_registers_again(controller: Any) -> None:
    c = controller()
    c.begin(part(2, 1, 3))
    c.take_over()
    c.controller_driver.suspect(2, NOW)
    c.commit()
    assert c.leaders == [1] and c.broker.image.brokers[2].fenced
    c.controller_driver.live_changed(NOW)
    assert c.perform() == []
    c.live(1, 3, broker_2=50)
    c.controller_driver.live_changed(NOW)
    c.commit()
    assert c.broker.image.brokers[2] == r.BrokerRegistration(2, 50, "h", 9092)


def test_a_suspect_that_is_not_in_the_image_yet_is_added_and_fenced(controller: Any) -> None:
    """It waits for its own broker epoch in the image: fenced with an earlier one it would hang."""
    c = controller()
    c.begin(part(2, 1, 3))
    c.take_over()
    c.live(1, 3, broker_2=50)
    c.controller_driver.suspect(2, NOW)
    c.commit()
    assert c.broker.image.brokers[2] == r.BrokerRegistration(2, 50, "h", 9092, fenced=True)
    assert c.leaders == [1]


def test_a_controller_does_not_suspect_itself_or_unknown_brokers(controller: Any) -> None:
    c = controller()
    c.begin(part(2, 1, 3))
    c.take_over()
    c.controller_driver.suspect(1, NOW)
    c.controller_driver.suspect(9, NOW)
    assert c.perform() == []


def test_r6_nothing_is_decided_while_the_store_is_away_and_everything_when_it_is_back(
    controller: Any,
) -> None:
    c = controller()
    c.begin(part(2, 1, 3), part(3, 1))
    c.take_over()
    c.broker.lifecycle.suspended = True
    c.live(1, 3)
    c.controller_driver.live_changed(NOW)
    c.controller_driver.suspect(3, NOW)
    c.advance(1_000_000)
    assert c.perform() == []
    c.broker.lifecycle.suspended = False
    c.controller_driver.resumed(NOW)
    c.commit()
    assert c.leaders == [1, 1]


def test_a_controller_without_a_list_of_live_brokers_fences_none(controller: Any) -> None:
    c = controller()
    c.begin(part(2, 1, 3))
    c.live()
    c.take_over()
    assert c.leaders == [2]


def test_a_refused_proposal_is_decided_again_a_moment_later(controller: Any) -> None:
    c = controller()
    c.begin(part(2, 1, 3))
    c.take_over()
    c.live(1, 3)
    c.controller_driver.live_changed(NOW)
    c.refuse()
    assert c.leaders == [2] and "another controller" in c.said[-1]
    assert c.perform() == []
    c.advance(1000)
    c.commit()
    assert c.leaders == [1]


def test_a_controller_that_resigned_decides_nothing(controller: Any) -> None:
    c = controller()
    c.begin(part(2, 1, 3), part(1, 2, leader=2))
    c.take_over()
    c.live(1, 3)
    c.controller_driver.live_changed(NOW)
    c.controller_driver.resign()
    c.refuse()
    c.controller_driver.live_changed(NOW)
    c.advance(1_000_000)
    assert c.perform() == [] and not c.controller_driver.is_active
    assert c.broker.next_deadline_ms is None


def test_a_large_change_is_proposed_in_parts_with_the_broker_last(controller: Any) -> None:
    c = controller()
    c.begin(*[part(2, 1, 3)] * 5000)
    c.take_over()
    c.live(1, 3)
    c.controller_driver.live_changed(NOW)
    appends = c.perform()
    assert len(appends) > 1
    assert all(len(b"\n".join(map(r.encode, records))) <= 512 * 1024 for records in appends)
    assert isinstance(appends[-1][-1], r.BrokerRegistration) and sum(map(len, appends)) == 5001
    c.commit()
    assert set(c.leaders) == {1}


def test_a_proposal_in_parts_is_answered_once(controller: Any) -> None:
    c = controller()
    records = [part(2, 1, 3)._replace(partition=number) for number in range(10_000)]
    for end, expected in ((c.commit, [None]), (c.refuse, ["another controller"])):
        answers: list[Any] = []
        c.controller_driver.propose(records, answers.append)
        assert answers == []
        end()
        assert answers == expected


# --- from time to time --------------------------------------------------------------------------------------


def test_leadership_returns_to_the_preferred_leader(controller: Any) -> None:
    c = controller(leader_imbalance_check_interval_seconds="60")
    c.begin(part(1, 2, leader=2), part(2, 1))
    c.take_over()
    c.advance(59_000)
    c.commit()
    assert c.leaders == [2, 2]
    c.advance(2000)
    c.commit()
    assert c.leaders == [1, 2]


def test_leadership_stays_without_auto_leader_rebalance(controller: Any) -> None:
    c = controller(leader_imbalance_check_interval_seconds="60", auto_leader_rebalance_enable="false")
    c.begin(part(1, 2, leader=2))
    c.take_over()
    c.advance(600_000)
    assert c.perform() == []


def test_a_long_metadata_log_is_replaced_by_a_snapshot(controller: Any) -> None:
    c = controller()
    c.begin(part(1, 2))
    c.take_over()
    c.broker.records_in_log = 10_000
    c.advance(30_000)
    c.perform()
    assert c.snapshots == []
    c.broker.records_in_log = 10_001
    c.advance(30_000)
    c.perform()
    # One at a time.
    [(_kind, records, done)] = c.snapshots
    assert records == c.broker.image.records()
    # The number that the store reports afterwards.
    c.broker.records_in_log = 5
    done(None)
    c.advance(30_000)
    c.perform()
    assert len(c.snapshots) == 1
    c.broker.records_in_log = 20_000
    c.advance(10_000)
    c.perform()
    c.snapshots[-1][2]("not now")
    assert "not now" in c.said[-1]
    c.advance(10_000)
    c.perform()
    assert len(c.snapshots) == 3


def test_a_metadata_log_that_is_not_longer_than_its_image_stays(controller: Any) -> None:
    c = controller()
    c.begin(*[part(1, 2)] * 5000)
    c.take_over()
    c.broker.records_in_log = 20_000
    c.advance(30_000)
    c.perform()
    assert c.snapshots == []


# --- settings -----------------------------------------------------------------------------------------------


def test_unclean_elections_that_are_allowed_later_are_held(controller: Any) -> None:
    c = controller()
    c.begin(part(2, 3, isr=(), leader=-1, eligible=(2,), last_leader=2))
    c.live(1, 3)
    c.take_over()
    assert c.leaders == [-1]
    c.broker.propose(
        [r.Config(TOPIC_RESOURCE, "t", "unclean.leader.election.enable", "true")], lambda _error: None
    )
    c.commit()
    c.commit()
    assert c.leaders == [3]


def test_r7_no_replica_stays_eligible_when_min_isr_is_changed(controller: Any) -> None:
    c = controller(min_insync_replicas="2")
    c.begin(part(1, 2, isr=(1,), eligible=(2,)), part(1, 2))
    c.take_over()
    for resource_type, name in ((TOPIC_RESOURCE, "t"), (4, "")):
        c.broker.image = c.broker.proposed = c.broker.image.apply([part(1, 2, isr=(1,), eligible=(2,))])
        c.broker.propose([r.Config(resource_type, name, "min.insync.replicas", "1")], lambda _error: None)
        c.commit()
        c.commit()
        assert c.broker.image.topics["t"].partitions[0].eligible == ()
