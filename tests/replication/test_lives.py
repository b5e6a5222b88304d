"""A broker's life: who has it, and whom it asks."""

import pytest

from ottla.model.errors import ErrorCode
from testkit.sim.quiet import Quiet


def test_a_broker_whose_number_another_process_has_taken_stops_serving() -> None:
    """Two with copies of one directory, say: the store has the newer registration, and what the older led is led there."""
    quiet = Quiet(2)
    quiet.create("t", (1, 2))
    quiet.write("t", b"one")
    broker = quiet.members[1].broker
    epoch = broker.lifecycle.broker_epoch
    record = broker.image.brokers[1]._replace(epoch=epoch + 1000)
    broker.committed([record], quiet.world.now_ms)
    assert not broker.lifecycle.is_serving
    assert quiet.replica(1, "t").leading is None
    rows = quiet.produce(1, "t", b"two")
    quiet.until(lambda: bool(rows))
    assert rows[0].error_code


def test_a_controller_that_does_not_answer_is_not_waited_for_when_there_is_another() -> None:
    quiet = Quiet(3)
    head = quiet.ensemble.holder
    leader, follower = (node for node in quiet.members if node != head)
    quiet.create("t", (leader, follower))
    quiet.write("t", b"one")
    quiet.kill(follower)
    quiet.until(lambda: quiet.partition("t").isr == (leader,))
    quiet.start(follower)
    # It gets the request to take the follower in, and stands still.
    isr_updates = quiet.members[leader].broker.replica_roles.isr_updates
    quiet.until(lambda: isr_updates._in_flight)
    quiet.members[head].pause()
    assert not quiet.all_in_sync("t")
    quiet.until(lambda: quiet.ensemble.holder not in (head, -1))
    assert quiet.until(lambda: quiet.all_in_sync("t")) < 1500


def test_what_is_said_once_is_not_remembered_for_ever() -> None:
    quiet = Quiet(1)
    broker = quiet.members[1].broker
    for at in range(5000):
        broker.say_once(f"something at offset {at}")
    assert len(broker._logged_once) <= 1000


def test_r7_what_a_broker_may_have_lost_is_for_its_own_file_to_say() -> None:
    """The controller flushes before it reports, and 1 does not: it must not be taken for whole after a power cut."""
    quiet = Quiet(3, settings={"min.insync.replicas": "2"}, own={2: {"log.flush.policy": "durable"}})
    assert quiet.ensemble.holder == 2
    quiet.create("t", (1, 3))
    quiet.write("t", b"one")
    quiet.until(lambda: quiet.all_in_sync("t"))
    member = quiet.members.pop(1)
    member.lose_power()
    member.power_returns()
    quiet.until(lambda: quiet.partition("t").isr == (3,))
    quiet.kill(3)
    quiet.until(lambda: quiet.leader("t") == -1)
    quiet.start(1)
    quiet.until(lambda: quiet.members[1].joined)
    quiet.run(1000)
    assert quiet.leader("t") == -1
    quiet.start(3)
    quiet.until(lambda: quiet.leader("t") == 3)
    quiet.until(lambda: quiet.replica(3, "t").high_watermark == 1)
    assert quiet.values(quiet.fetch(3, "t", 0)) == [b"one"]


@pytest.mark.parametrize(("name", "is_taken"), [("1", False), ("", True)])
def test_no_broker_has_a_min_isr_of_its_own(name: str, is_taken: bool) -> None:
    """A leader that is content with less than the controller knows of makes those eligible who lack what was acknowledged."""
    quiet = Quiet(2)
    config = {"name": "min.insync.replicas", "config_operation": 0, "value": "2"}
    resource = {"resource_type": 4, "resource_name": name, "configs": [config]}
    code = quiet.call(2, 44, 1, {"resources": [resource]}).responses[0].error_code
    assert code == (0 if is_taken else ErrorCode.INVALID_CONFIG)


def test_all_brokers_have_the_same_min_insync_replicas_whatever_their_files_say() -> None:
    """R7: the controller would elect one from those that left an ISR which it takes for too small to commit anything."""
    quiet = Quiet(
        3,
        settings={"log.flush.policy": "durable", "min.insync.replicas": "2"},
        own={1: {"min.insync.replicas": "1"}},
    )
    values = {each.broker.config.min_insync_replicas for each in quiet.members.values()}
    assert len(values) == 1
    quiet.create("t", (1, 3))
    assert quiet.replica(1, "t").config.min_insync_replicas == values.pop()
    # Taken back, it is set again at once: nobody falls back to a file of their own.
    quiet.configure(4, "", **{"min.insync.replicas": "2"})
    operation = {"name": "min.insync.replicas", "config_operation": 1, "value": None}
    resource = {"resource_type": 4, "resource_name": "", "configs": [operation]}
    quiet.call(2, 44, 1, {"resources": [resource]})
    quiet.run(500)
    for each in quiet.members.values():
        assert "min.insync.replicas" in each.broker.image.configs[4, ""]
    assert len({each.broker.config.min_insync_replicas for each in quiet.members.values()}) == 1
