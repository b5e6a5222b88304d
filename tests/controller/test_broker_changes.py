"""Brokers that come, go, stop, and are forgotten."""

import time

import pytest

from ottla.controller.broker_changes import (
    broker_gone,
    broker_removed,
    broker_stopping,
    reconcile,
    void_eligible,
)
from ottla.metadata import records as r
from ottla.metadata.image import Image
from ottla.model.errors import ErrorCode, Refusal
from tests.controller.making import CONFIG, after, cluster, living, only, part, registration, state


def partitions(records: list[r.Record]) -> list[r.Partition]:
    return [record for record in records if isinstance(record, r.Partition)]


def test_nothing_to_do() -> None:
    assert reconcile(cluster(part()), CONFIG, living(1, 2, 3, 4)) == []


def test_a_broker_that_is_gone_leads_nothing_and_is_in_no_isr_and_its_record_comes_last() -> None:
    image = cluster(part(), part((2, 1, 3)), part((2, 3, 4)))
    records = reconcile(image, CONFIG, living(2, 3, 4))
    assert [state(each) for each in partitions(records)] == [(2, (2, 3), ()), (2, (2, 3), ())]
    assert records[-1] == image.brokers[1]._replace(fenced=True)
    assert [after(old, new) for old, new in zip(image.topics["t"].partitions, partitions(records), strict=False)] == [
        (1, 1)
    ] * 2  # fmt: skip
    assert reconcile(image.apply(records), CONFIG, living(2, 3, 4)) == []
    assert records == broker_gone(image, CONFIG, 1)


def test_two_that_go_at_once_had_the_same() -> None:
    new = only(image := cluster(part()).apply(reconcile(cluster(part()), CONFIG, living(3, 4))))
    assert state(new) == (3, (3,), (1, 2))
    assert image.brokers[1].fenced and image.brokers[2].fenced
    assert broker_gone(image, CONFIG, 1) == broker_gone(image, CONFIG, 77) == []


def test_a_suspect_is_fenced_until_it_registers_anew() -> None:
    image = cluster(part())
    records = reconcile(image, CONFIG, living(1, 2, 3, 4), suspects=(1,))
    assert records[-1] == image.brokers[1]._replace(fenced=True)
    image = image.apply(records)
    # Its registration is still there, and means nothing any more.
    assert reconcile(image, CONFIG, living(1, 2, 3, 4)) == []
    records = reconcile(image, CONFIG, {**living(2, 3, 4), 1: registration(1, 50)})
    assert records[-1] == r.BrokerRegistration(1, 50, "h1", 9092, directories=("d1",))


def test_r5_another_life_is_a_departure_and_an_arrival() -> None:
    """Its earlier life ended unnoticed: what it led goes on in a new epoch, and it stays in sync if it ended cleanly."""
    image = cluster(part(), part((2, 1, 3)))
    records = reconcile(image, CONFIG, {**living(2, 3, 4), 1: registration(1, 50)})
    [led] = partitions(records)
    assert state(led) == (1, (1, 2, 3), ())
    assert after(only(image), led) == (1, 1)
    assert records[-1] == r.BrokerRegistration(1, 50, "h1", 9092, directories=("d1",))


def test_r5_lives_do_not_go_back() -> None:
    """The controller has seen a life begin of which the list of the living does not tell yet."""
    image = cluster(part()).apply([r.BrokerRegistration(1, 50, "h1", 9092)])
    assert reconcile(image, CONFIG, living(1, 2, 3, 4)) == []


def test_r7_after_an_unclean_end_it_leaves_the_isr_first() -> None:
    image = cluster(part(), part((2, 1, 3)))
    records = reconcile(image, CONFIG, {**living(2, 3, 4), 1: registration(1, 50, clean=False)})
    assert [state(each) for each in partitions(records)] == [(2, (2, 3), ()), (2, (2, 3), ())]
    assert isinstance(records[-1], r.BrokerRegistration) and not records[-1].fenced


def test_r7_what_is_flushed_before_it_is_reported_is_not_lost() -> None:
    for name, value in (("flush.policy", "durable"), ("flush.messages", "1")):
        image = cluster(part(isr=(), eligible=(1, 2), last_leader=2), fenced=(1, 2), settings={name: value})
        records = reconcile(image, CONFIG, {**living(3, 4), 1: registration(1, 50, clean=False)})
        assert state(partitions(records)[0]) == (1, (1,), (2,))
    image = cluster(part(isr=(), eligible=(1, 2), last_leader=2), fenced=(1, 2))
    records = reconcile(image, CONFIG, {**living(3, 4), 1: registration(1, 50, clean=False)})
    assert state(partitions(records)[0]) == (-1, (), (2,))


def test_a_broker_that_comes_back_leads_what_nobody_did() -> None:
    image = cluster(part(isr=(), eligible=(1, 2), last_leader=2), fenced=(1, 2))
    image = image.apply(reconcile(image, CONFIG, {**living(3, 4), 1: registration(1, 50)}))
    assert state(only(image)) == (1, (1,), (2,))
    assert image.is_live(1) and not image.is_live(2)


def test_a_new_broker_is_told_of() -> None:
    records = reconcile(cluster(part()), CONFIG, living(1, 2, 3, 4, 5))
    assert records == [r.BrokerRegistration(5, 5, "h5", 9092, directories=("d5",))]


def test_a_controller_that_dies_in_the_middle_leaves_the_rest_to_the_next() -> None:
    image = cluster(*[part((1, 2, 3))] * 4)
    live = {**living(2, 3, 4), 1: registration(1, 50, clean=False)}
    records = reconcile(image, CONFIG, live)
    for cut in range(len(records)):
        half = image.apply(records[:cut])
        assert half.brokers[1].epoch != 50
        whole = half.apply(reconcile(half, CONFIG, live))
        assert {state(each) for each in whole.topics["t"].partitions} == {(2, (2, 3), ())}
        assert whole.brokers[1].epoch == 50


# --- controlled shutdown -----------------------------------------------------------------------------------------------


def test_a_broker_that_stops_hands_over_what_others_can_take() -> None:
    image = cluster(part(), part((2, 1, 3)), part((1, 2), isr=(1,)), part((2, 3)))
    records = broker_stopping(image, CONFIG, 1)
    assert records[0] == image.brokers[1]._replace(stopping=True)
    image = image.apply(records)
    assert [state(each) for each in image.topics["t"].partitions] == [
        (2, (2, 3), ()), (2, (2, 3), ()), (1, (1,), ()), (2, (2, 3), ()),
    ]  # fmt: skip
    # Asked again there is nothing left; when it has gone, the last one has no leader.
    assert broker_stopping(image, CONFIG, 1) == []
    assert reconcile(image, CONFIG, living(1, 2, 3, 4)) == []
    image = image.apply(reconcile(image, CONFIG, living(2, 3, 4)))
    assert state(image.topics["t"].partitions[2]) == (-1, (), (1,))
    image = image.apply(reconcile(image, CONFIG, {**living(2, 3, 4), 1: registration(1, 50)}))
    assert image.is_live(1) and state(image.topics["t"].partitions[2]) == (1, (1,), ())


def test_asked_again_it_hands_over_what_can_be_taken_by_then() -> None:
    image = cluster(part((1, 2), isr=(1,)))
    image = image.apply(broker_stopping(image, CONFIG, 1))
    image = image.apply([only(image)._replace(isr=(1, 2), partition_epoch=20)])
    [moved] = broker_stopping(image, CONFIG, 1)
    assert isinstance(moved, r.Partition) and state(moved) == (2, (2,), (1,))


# --- forgotten ---------------------------------------------------------------------------------------------------------


def test_a_broker_is_forgotten_when_it_has_gone() -> None:
    image = cluster(part(), fenced=(4,))
    assert broker_removed(image, CONFIG, 4, {1, 2, 3}) == [r.BrokerRemoved(4)]
    records = broker_removed(image, CONFIG, 1, {2, 3})
    assert state(partitions(records)[0]) == (2, (2, 3), ()) and records[-1] == r.BrokerRemoved(1)
    for node, code in ((9, ErrorCode.BROKER_ID_NOT_REGISTERED), (1, ErrorCode.INVALID_REQUEST)):
        with pytest.raises(Refusal) as caught:
            broker_removed(image, CONFIG, node, {1, 2, 3})
        assert caught.value.code == code


def test_r7_nobody_is_eligible_beside_an_isr_that_has_become_large_enough() -> None:
    """Also if the setting was raised again meanwhile: what counts is what the leaders have seen."""
    lowered = cluster(
        part(isr=(1,), eligible=(2,)),
        part(isr=(), eligible=(2,)),
        part(),
        settings={"min.insync.replicas": "1"},
    )
    raised = lowered.apply([r.Config(2, "t", "min.insync.replicas", "2")])
    [voided] = void_eligible(raised, lowered, CONFIG, ["t"])
    assert isinstance(voided, r.Partition)
    assert (voided.partition, state(voided)) == (0, (1, (1,), ()))
    assert after(only(lowered), voided) == (0, 1)
    # Where it is too small as before, they still have everything, and nobody else may.
    assert void_eligible(raised, raised, CONFIG, ["t"]) == []


def test_ten_thousand_partitions_survive_a_death_in_a_moment() -> None:
    made: list[r.Record] = [r.BrokerRegistration(node, node, "h", 1) for node in (1, 2, 3)]
    for number in range(100):
        topic_id = number.to_bytes(16, "big")
        made.append(r.Topic(f"t{number}", topic_id))
        made.append(r.NewPartitions(topic_id, 0, tuple(((at % 3) + 1, (at + 1) % 3 + 1, (at + 2) % 3 + 1) for at in range(100))))  # fmt: skip
    image = Image().apply(made)
    began = time.process_time()
    records = reconcile(image, CONFIG, living(2, 3))
    assert time.process_time() - began < 1
    assert len(records) == 10_001
