"""What brokers ask of the controller, and what people ask about brokers: heartbeats, producer ids, the cluster and its quorum."""

from typing import Any

from ottla.model.limits import PRODUCER_ID_BLOCK
from tests.broker.api.clustered import join_cluster, part, partition

NOT_CONTROLLER, INVALID_REQUEST, STALE_BROKER_EPOCH, NOT_REGISTERED, LEADER_NOT_AVAILABLE = 41, 42, 77, 102, 5
NOT_AUTHORIZED = 31


def beat(client: Any, node: int = 2, epoch: int | None = None, **more: Any) -> Any:
    fields = {"current_metadata_offset": 0, "want_fence": False, "want_shut_down": False, **more}
    client.connection.broker_id = node
    return client.ask(63, broker_id=node, broker_epoch=node if epoch is None else epoch, **fields)


def test_a_heartbeat_tells_how_the_broker_stands(driver: Any, client: Any) -> None:
    join_cluster(driver, part(0, 2, 3, 4), fenced=(4,))
    end = driver.broker.image.end
    answer = beat(client, current_metadata_offset=end)
    assert (answer.error_code.value, answer.is_caught_up, answer.is_fenced, answer.should_shut_down) == (0, True, False, False)  # fmt: skip
    assert not beat(client, current_metadata_offset=end - 1).is_caught_up
    assert beat(client, 4).is_fenced
    for node, epoch in ((2, 1), (9, 9)):
        assert beat(client, node, epoch).error_code.value == STALE_BROKER_EPOCH
    driver.broker.lifecycle.suspended = True
    assert beat(client).error_code.value == NOT_CONTROLLER


def test_a_broker_may_stop_once_others_lead(driver: Any, client: Any) -> None:
    join_cluster(driver, part(0, 2, 3, 4), part(1, 2, 3, isr=(2,)))
    driver.are_proposals_held = True
    client.connection.broker_id = 2
    client.send(
        63, broker_id=2, broker_epoch=2, current_metadata_offset=0, want_fence=False, want_shut_down=True
    )
    assert client.answers == []
    driver.commit()
    driver.turn()
    answer = client.answers.pop()
    assert (answer.error_code.value, answer.should_shut_down, answer.is_fenced) == (0, True, False)
    assert (partition(driver).leader, partition(driver).isr) == (3, (3, 4))
    assert partition(driver, 1).leader == 2
    assert driver.broker.image.brokers[2].stopping
    driver.are_proposals_held = False
    assert beat(client, want_shut_down=True).should_shut_down
    assert beat(client).should_shut_down


def test_a_broker_may_not_stop_when_that_was_not_written(driver: Any, client: Any) -> None:
    join_cluster(driver, part(0, 2, 3, 4))
    driver.are_proposals_held = True
    client.connection.broker_id = 2
    client.send(
        63, broker_id=2, broker_epoch=2, current_metadata_offset=0, want_fence=False, want_shut_down=True
    )
    driver.commit("fenced")
    driver.turn()
    answer = client.answers.pop()
    assert (answer.error_code.value, answer.should_shut_down) == (NOT_CONTROLLER, False)


def test_a_broker_is_fenced_if_it_wants_to_be(driver: Any, client: Any) -> None:
    join_cluster(driver, part(0, 2, 3, 4))
    assert beat(client, want_fence=True).is_fenced
    assert partition(driver).leader == 3 and driver.broker.image.brokers[2].fenced
    # A fenced one may stop, and has nothing left.
    assert beat(client, want_shut_down=True).should_shut_down


def test_a_broker_on_its_own_may_stop_and_loses_nothing_by_asking(client: Any, driver: Any) -> None:
    client.create("t")
    before = driver.broker.image
    answer = beat(client, 1, want_shut_down=True, want_fence=True)
    assert (answer.should_shut_down, answer.is_fenced) == (True, False)
    assert driver.broker.image is before


def test_blocks_of_producer_ids_are_given_once(driver: Any, client: Any) -> None:
    join_cluster(driver)
    driver.are_proposals_held = True
    client.connection.broker_id = 2
    others = [driver.connect(broker_id=2) for _ in range(3)]
    for each in (client, *others):
        each.send(67, broker_id=2, broker_epoch=2)
        assert each.answers == []
    driver.commit()
    driver.turn()
    answers = [each.answers.pop() for each in (client, *others)]
    assert {answer.producer_id_len for answer in answers} == {PRODUCER_ID_BLOCK}
    assert len({answer.producer_id_start for answer in answers}) == 4
    assert driver.broker.image.next_producer_id >= max(answer.producer_id_start for answer in answers) + PRODUCER_ID_BLOCK  # fmt: skip


def test_no_producer_ids_for_strangers_or_from_others(driver: Any, client: Any) -> None:
    join_cluster(driver)
    client.connection.broker_id = 2
    assert client.ask(67, broker_id=2, broker_epoch=1).error_code.value == STALE_BROKER_EPOCH
    driver.are_proposals_held = True
    client.send(67, broker_id=2, broker_epoch=2)
    driver.commit("fenced")
    driver.turn()
    assert client.answers.pop().error_code.value == NOT_CONTROLLER
    driver.broker.controller_driver.resign()
    assert client.ask(67, broker_id=2, broker_epoch=2).error_code.value == NOT_CONTROLLER


def test_nobody_else_speaks_for_a_broker(driver: Any) -> None:
    """Whatever epoch a client knows: it could depose a live leader, or use up the producer ids."""
    join_cluster(driver, part(0, 2, 3, 4))
    before = driver.broker.image.end
    for sender in (driver.connect(), driver.connect(broker_id=3)):
        wanted = {"current_metadata_offset": 0, "want_fence": True, "want_shut_down": True}
        answer = sender.ask(63, broker_id=2, broker_epoch=2, **wanted)
        assert answer.error_code.value == NOT_AUTHORIZED
        assert sender.ask(67, broker_id=2, broker_epoch=2).error_code.value == NOT_AUTHORIZED
    assert driver.broker.image.end == before


def test_nor_to_a_broker_on_its_own(driver: Any, client: Any) -> None:
    before = driver.broker.image
    wanted = {"current_metadata_offset": 0, "want_fence": True, "want_shut_down": True}
    assert client.ask(63, broker_id=1, broker_epoch=1, **wanted).error_code.value == NOT_AUTHORIZED
    assert client.ask(67, broker_id=1, broker_epoch=1).error_code.value == NOT_AUTHORIZED
    assert client.ask(56, broker_id=1, broker_epoch=1, topics=[]).error_code.value == NOT_AUTHORIZED
    assert driver.broker.image is before
    refusals = [text for text in driver.said if "request between brokers" in text]
    assert len(refusals) == 3, "once for each API"


def test_a_broker_that_will_not_come_back_is_forgotten(driver: Any, client: Any) -> None:
    join_cluster(driver, part(0, 2, 3), fenced=(4,))
    assert client.ask(64, broker_id=4).error_code.value == 0
    assert 4 not in driver.broker.image.brokers
    for node, code in ((4, NOT_REGISTERED), (2, INVALID_REQUEST), (1, INVALID_REQUEST)):
        answer = client.ask(64, broker_id=node)
        assert answer.error_code.value == code and str(node) in answer.error_message
    driver.broker.lifecycle.suspended = True
    assert client.ask_in_vain(64, broker_id=2).error_code.value == NOT_CONTROLLER


def test_fenced_brokers_are_described_if_they_are_asked_for(driver: Any, client: Any) -> None:
    join_cluster(driver, fenced=(4,))
    answer = client.ask(60)
    assert [row.broker_id for row in answer.brokers] == [1, 2, 3]
    assert answer.controller_id == 1
    answer = client.ask(60, include_fenced_brokers=True)
    assert [(row.broker_id, row.is_fenced) for row in answer.brokers] == [
        (1, False),
        (2, False),
        (3, False),
        (4, True),
    ]
    driver.broker.lifecycle.controller_id = -1
    assert client.ask(60).controller_id == -1


def test_the_quorum_of_a_cluster_is_its_controller(driver: Any, client: Any) -> None:
    join_cluster(driver, fenced=(4,))
    membership = driver.broker.lifecycle
    membership.controller_id, membership.controller_epoch = 2, 9
    topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    answer = client.ask(55, topics=topics)
    [[row]] = [topic.partitions for topic in answer.topics]
    end = driver.broker.image.end
    assert (row.leader_id, row.leader_epoch, row.high_watermark) == (2, 9, end)
    # All read the same log: tools subtract these ends, and a lag is never negative.
    assert [(each.replica_id, each.log_end_offset) for each in row.current_voters] == [(2, end)]
    assert [(each.replica_id, each.log_end_offset) for each in row.observers] == [(1, end), (3, end)]
    assert [(node.node_id, node.listeners[0].host) for node in answer.nodes] == [
        (1, "127.0.0.1"), (2, "h2"), (3, "h3"),
    ]  # fmt: skip
    membership.controller_id = -1
    [[row]] = [topic.partitions for topic in client.ask(55, topics=topics).topics]
    assert (row.error_code.value, row.leader_id, row.current_voters) == (LEADER_NOT_AVAILABLE, -1, ())
