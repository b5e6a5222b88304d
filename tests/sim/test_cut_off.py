"""A broker that cannot reach the store while all others can: it must not claim leadership without end."""

from testkit.sim.quiet import Quiet

METADATA = 3
ASKED = {"topics": [{"name": "t"}], "allow_auto_topic_creation": False}


def test_a_leader_that_is_cut_off_from_the_store_sends_its_clients_away() -> None:
    quiet = Quiet(3, settings={"zookeeper.session.timeout.ms": "4000"})
    quiet.create("t", (1, 2, 3))
    quiet.write("t", b"one")
    alone = quiet.members[1]
    alone.client.cut()
    # Its session expires, and others lead; it does not know, and serves until other brokers tell it.
    quiet.until(lambda: quiet.members[2].broker.image.topics["t"].partitions[0].leader in (2, 3))
    assert alone.broker.image.topics["t"].partitions[0].leader == 1
    quiet.until(lambda: not alone.broker.lifecycle.is_serving, 20_000)
    assert quiet.replica(1, "t").leading is None
    answers = quiet.ask(1, METADATA, 9, ASKED)
    quiet.until(lambda: bool(answers))
    assert answers == [None]
    alone.client.heal()
    quiet.until(lambda: quiet.all_in_sync("t"), 20_000)
    assert quiet.call(1, METADATA, 9, ASKED).topics[0].partitions[0].leader_id in (2, 3)
    quiet.write("t", b"two")


def test_when_nobody_reaches_the_store_all_serve_on() -> None:
    """R6"""
    quiet = Quiet(3, settings={"zookeeper.session.timeout.ms": "4000"})
    quiet.create("t", (1, 2, 3))
    quiet.write("t", b"one")
    for member in quiet.members.values():
        member.client.cut()
    quiet.until(lambda: all(each.broker.lifecycle.suspended for each in quiet.members.values()), 20_000)
    quiet.run(15_000)
    quiet.write("t", b"two")
    assert quiet.call(2, METADATA, 9, ASKED).topics[0].partitions[0].leader_id == 1
