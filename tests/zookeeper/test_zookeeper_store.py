import asyncio
from contextlib import AsyncExitStack

import pytest
from kazoo.client import KazooClient
from member import Member, answer, member, on_a_loop, topic, until

from ottla.metadata import records as r
from ottla.ports.store import APPEND_BYTES_MAX, SUPERSEDED
from ottla.runtime import zookeeper_layout as layout
from ottla.runtime.local_zookeeper import LocalZookeeper
from ottla.runtime.zookeeper_log import FENCED, NOT_CONTROLLER
from ottla.runtime.zookeeper_store import StoreUnavailable
from ottla.security.cluster_secret import SECRET_BYTES, ClusterSecret


@on_a_loop
async def test_registrations_and_departures_are_seen_by_all(cluster: str) -> None:
    async with member(cluster, 1) as one:
        epoch, error = await one.register()
        assert error is None and epoch > 0
        async with member(cluster, 2) as two:
            assert two.live == {1: one.registration()._replace(epoch=epoch)}, "told before connect returns"
            assert ("restored", 0) in two.calls
            second, error = await two.register()
            assert error is None and second > epoch
            await until(lambda: sorted(one.live) == [1, 2] == sorted(two.live))
        # An orderly close needs no session timeout.
        await until(lambda: sorted(one.live) == [1])


@on_a_loop
async def test_an_earlier_incarnation_is_replaced_at_once_and_another_directory_is_refused(
    cluster: str,
) -> None:
    async with member(cluster, 1) as dead, member(cluster, 2) as watcher:
        first, _ = await dead.register(incarnation="first")
        async with member(cluster, 1) as other:
            epoch, error = await other.register(directory="another", incarnation="other")
            assert epoch == 0 and error is not None and "node id 1 is in use by the broker at h:9001" in error
        async with member(cluster, 1) as again:
            second, error = await again.register(incarnation="second")
            assert error is None and second > first
            await until(lambda: watcher.live[1].incarnation == "second")
            assert watcher.live[1].epoch == second
            # An earlier incarnation that still runs sees that it was replaced.
            await until(lambda: dead.live[1].epoch == second)
            # A second request returns the same registration.
            assert await again.register(incarnation="second") == (second, None)


@on_a_loop
async def test_many_register_at_once(cluster: str) -> None:
    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(member(cluster, number)) for number in range(5)]
        answers = await asyncio.gather(*(each.register() for each in members))
        assert all(error is None for _, error in answers)
        assert len({epoch for epoch, _ in answers}) == 5
        await until(lambda: all(len(each.live) == 5 for each in members))


@on_a_loop
async def test_of_two_that_claim_one_wins_and_the_epochs_grow(cluster: str) -> None:
    epochs = []
    async with member(cluster, 9) as watcher:
        for _ in range(5):
            async with member(cluster, 1) as one, member(cluster, 2) as two:
                answers = await asyncio.gather(one.claim(), two.claim())
                winner, loser = (one, two) if answers[0][1] is None else (two, one)
                epoch, error = max(answers)
                assert error is None
                assert min(answers) == (0, f"held by {winner.node_id}"), "one wins, the other is told who"
                epochs.append(epoch)
                for each in (winner, loser, watcher):
                    await each.until_controller(winner.node_id, epoch)
                assert await winner.claim() == (epoch, None), "it has it already"
            await watcher.until_controller(-1, epochs[-1])
    assert epochs == sorted(set(epochs))


@on_a_loop
async def test_appends_reach_everybody_once_and_in_order(cluster: str) -> None:
    async with member(cluster, 1) as one, member(cluster, 2) as two:
        await one.claim()
        # Without waiting: they share entries.
        answers = [one.propose(topic(number), topic(number + 1000)) for number in range(200)]
        await until(lambda: all(answers))
        assert all(each == [None] for each in answers)
        expected = [record for number in range(200) for record in (topic(number), topic(number + 1000))]
        assert one.records == expected
        await until(lambda: len(two.records) >= 400)
        assert two.records == expected
        assert one.store.end == two.store.end == 400
        assert len([call for call in two.calls if call[0] == "committed"]) < 100, "they shared entries"
        # Each callback comes after its records.
        assert one.calls.index(("done", None)) > min(
            index for index, call in enumerate(one.calls) if call[0] == "committed"
        )
        # An empty proposal is answered like any other.
        assert await one.append() is None
        assert await one.append(topic(5000)) is None
        await until(lambda: two.records[-1] == topic(5000))
        async with member(cluster, 3) as late:
            assert late.records == one.records


@on_a_loop
async def test_only_the_controller_appends(cluster: str) -> None:
    async with member(cluster, 1) as one, member(cluster, 2) as two:
        await one.claim()
        assert await two.append(topic(1)) == NOT_CONTROLLER
        assert "rejected" in two.calls
        assert await one.append(topic(2)) is None
        await until(lambda: two.records == [topic(2)])


@on_a_loop
async def test_a_zombie_is_fenced_and_leaves_no_entry(cluster: str) -> None:
    async with member(cluster, 1) as zombie, member(cluster, 2) as heir:
        epoch, _ = await zombie.claim()
        await zombie.append(topic(1))
        assert await heir.usurp(1, epoch + 1) == (0, "held by 1"), "not the one that was suspected"
        assert await heir.usurp(3, epoch) == (0, "held by 1")
        taken, error = await heir.usurp(1, epoch)
        assert (taken, error) == (epoch + 1, None)
        assert heir.records == [topic(1)], "it has read everything before it is told"
        # Both at once: the old controller does not know yet.
        answers = await asyncio.gather(
            zombie.append(topic(2)), zombie.append(topic(3)), heir.append(topic(4))
        )
        assert answers == [FENCED, FENCED, None]
        assert await zombie.append(topic(5)) == NOT_CONTROLLER
        await until(lambda: zombie.records == [topic(1), topic(4)])
        assert heir.records == [topic(1), topic(4)]
        await until(lambda: zombie.controller == (2, epoch + 1))
        # Back and forth: each takes over with the entries of the other.
        assert await zombie.usurp(2, epoch + 1) == (epoch + 2, None)
        assert await zombie.append(topic(6)) is None
        assert await heir.append(topic(7)) == FENCED
        await until(lambda: heir.records == zombie.records == [topic(1), topic(4), topic(6)])


@on_a_loop
async def test_a_new_controller_has_read_the_log_before_its_claim_is_answered(cluster: str) -> None:
    async with member(cluster, 1) as old, member(cluster, 2) as heir:
        epoch, _ = await old.claim()
        # The next controller lags behind: it cannot read for a while.
        async with heir.store._log._reading:
            assert await old.append(topic(1)) is None
            known: list[list[r.Record]] = []
            heir.store.usurp(1, epoch, lambda _epoch, _error: known.append(list(heir.records)))
            await old.until_controller(2, epoch + 1)
            assert await old.append(topic(2)) == FENCED
            assert known == []
        await until(lambda: known)
        assert known == [[topic(1)]]
        # Its entries come after those that it has read.
        assert await heir.append(topic(3)) is None
        await until(lambda: old.records == heir.records == [topic(1), topic(3)])


@on_a_loop
async def test_an_oversized_change_is_refused_before_it_is_sent(cluster: str) -> None:
    async with member(cluster, 1) as one:
        await one.claim()
        fits = [topic(number, 1000) for number in range(400)]
        too_large = [topic(number, 1000) for number in range(600)]
        assert await one.append(*fits) is None
        answers = [one.propose(topic(1000)), one.propose(*too_large), one.propose(topic(1001))]
        await until(lambda: all(answers))
        assert answers[0] == [None]
        assert f"exceeds the limit of {APPEND_BYTES_MAX}" in str(answers[1][0])
        # Decided on top of it, so it is superseded: the error of another change would mislead its client.
        assert answers[2] == [SUPERSEDED]
        assert one.calls.count("rejected") == 1
        # Split into two changes it succeeds; the connection was not affected.
        assert await one.append(*too_large[:300]) is None
        assert await one.append(*too_large[300:]) is None
        assert "suspended" not in one.calls
        # Several large changes that do not fit together get separate entries.
        answers = [one.propose(*fits) for _ in range(3)]
        await until(lambda: all(answers))
        assert answers == [[None]] * 3
        assert len(one.records) == 400 + 1 + 600 + 1200


@on_a_loop
async def test_a_snapshot_replaces_the_log_and_readers_see_the_same(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.runtime.zookeeper_snapshot.ENTRIES_KEPT", 5)
    monkeypatch.setattr("ottla.runtime.zookeeper_layout.CHUNK_BYTES_MAX", 2000)
    async with member(cluster, 1) as one, member(cluster, 2) as two:
        assert await two.snapshot() == NOT_CONTROLLER
        await one.claim()
        for number in range(30):
            assert await one.append(topic(number, 100)) is None
        assert one.store.records_in_log == 30
        assert await one.snapshot() is None
        assert one.store.records_in_log == 0
        assert await one.append(topic(100)) is None
        async with member(cluster, 3) as late:
            assert late.records == one.records
            assert late.calls[0] == ("restored", 30)
        names = sorted(map(int, await one.store._link.children("/metadata/log")))
        assert names == [25, 26, 27, 28, 29, 30], "five older entries are kept, for who was away for a moment"
        # Again: the older snapshot is deleted.
        assert await one.snapshot() is None
        assert [int(name) for name in await one.store._link.children("/metadata/snapshot")] == [31]
        # The next controller continues from there.
        assert (await two.usurp(1, one.controller[1]))[1] is None
        assert await two.append(topic(101)) is None
        await until(lambda: one.records == two.records)
        assert await one.snapshot() == FENCED
        async with member(cluster, 3) as late:
            assert late.records == two.records


@on_a_loop
async def test_a_snapshot_while_appends_go_on(cluster: str) -> None:
    async with member(cluster, 1) as one, member(cluster, 2) as two:
        await one.claim()
        answers = []
        snapshots = []
        for number in range(300):
            answers.append(one.propose(topic(number)))
            if number % 50 == 25:
                snapshots.append(asyncio.ensure_future(one.snapshot()))
            await asyncio.sleep(0)
        await until(lambda: all(answers))
        assert await asyncio.gather(*snapshots) == [None] * 6
        await until(lambda: len(two.records) == 300)
        assert one.records == two.records == [topic(number) for number in range(300)]
        async with member(cluster, 3) as late:
            assert late.records == one.records


@on_a_loop
async def test_znodes_of_a_user_are_closed_to_others(cluster: str) -> None:
    user = {"digest": "ottla:secret", "set_acl": True}
    async with member(cluster, 1, **user) as one, member(cluster, 2, **user) as two:
        assert (await one.register())[1] is None
        assert (await one.claim())[1] is None
        assert await one.append(topic(1)) is None
        assert (await two.register())[1] is None
        await until(lambda: two.records == [topic(1)] and len(two.live) == 2)
        for stranger in ({}, {"digest": "ottla:guessed"}, {"digest": "other:secret", "set_acl": True}):
            with pytest.raises(StoreUnavailable, match="not allowed"):
                await Member(cluster, 3, **stranger).store.connect()
    # Another user's cluster is beside it; an open cluster has no owner.
    folder = f"{cluster}-folder"
    async with member(f"{folder}/a", 1, **user), member(f"{folder}/b", 1, digest="a:b", set_acl=True):
        pass
    async with member(cluster + "-open", 1) as one, member(cluster + "-open", 2, digest="a:b") as two:
        assert (await two.claim())[1] is None


@on_a_loop
async def test_a_missing_zookeeper_is_reported_with_its_address(free_port: int) -> None:
    lonely = Member(f"127.0.0.1:{free_port}", connection_timeout_ms=300)
    with pytest.raises(
        StoreUnavailable, match=f"answers at 127.0.0.1:{free_port} within 0.3 s .Connection refused."
    ):
        await lonely.store.connect()
    assert lonely.calls == []


@on_a_loop
async def test_requests_to_a_closed_store_are_answered(cluster: str) -> None:
    async with member(cluster, 1) as one:
        await one.claim()
        answers = [one.propose(topic(number)) for number in range(3)]
    assert all(each in ([None], ["the store is closed"]) for each in answers)


@on_a_loop
async def test_the_first_broker_names_the_cluster_and_the_others_take_that_name(cluster: str) -> None:
    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(member(cluster, number)) for number in range(4)]
        names = await asyncio.gather(*(each.store.cluster_id(f"name-{each.node_id}") for each in members))
        assert len(set(names)) == 1
        assert await members[3].store.cluster_id("another") == names[0]
    async with member(cluster, 5) as later:
        assert await later.store.cluster_id("another") == names[0]


@on_a_loop
async def test_a_path_that_apache_kafka_uses_is_left_alone(
    cluster: str, shared_zookeeper: LocalZookeeper
) -> None:
    kafka = KazooClient(shared_zookeeper.address)
    path = f"/{cluster.partition('/')[2]}"
    await asyncio.to_thread(kafka.start)
    try:
        await asyncio.to_thread(kafka.create, f"{path}/cluster/id", b"{}", makepath=True)
        with pytest.raises(
            StoreUnavailable, match=rf"Apache Kafka keeps .* such as zookeeper.connect={cluster}/ottla"
        ):
            await Member(cluster).store.connect()
        assert await asyncio.to_thread(kafka.get_children, path) == ["cluster"]
        async with member(f"{cluster}/ottla") as one:
            assert (await one.register())[1] is None
    finally:
        await asyncio.to_thread(kafka.stop)
        await asyncio.to_thread(kafka.close)


@on_a_loop
async def test_the_first_broker_makes_the_cluster_secret_and_the_others_read_it(cluster: str) -> None:
    def own(number: int) -> ClusterSecret:
        return ClusterSecret(bytes([number]) * SECRET_BYTES)

    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(member(cluster, number)) for number in range(3)]
        found = await asyncio.gather(*(each.store.cluster_secret(own(each.node_id)) for each in members))
        assert len({each.stored() for each in found}) == 1
        assert found[0].stored() in {own(number).stored() for number in range(3)}
        link = members[0].store._link
        data, stat = await link.get(layout.CLUSTER_SECRET)
        assert len(data) == 2 * SECRET_BYTES and stat.ephemeralOwner == 0
        # An invalid secret is not used, and not shown.
        await link.multi([("set", layout.CLUSTER_SECRET, b"not a secret", stat.version)])
        with pytest.raises(StoreUnavailable, match="/cluster_secret is no cluster secret") as error:
            await members[1].store.cluster_secret(own(9))
        assert "not a secret" not in str(error.value)


@on_a_loop
async def test_epochs_are_asked_for_by_the_broker_and_raised_by_the_store(cluster: str) -> None:
    async with member(cluster, 1) as one, member(cluster, 2) as other:
        token = 0x123456789
        asked = one.registration()._replace(epoch=token)
        first, _ = await answer(one.store.register, asked)
        assert first % (1 << 39) == token and first > token
        # Restarted after a lost response it is the same registration, whatever has happened meanwhile.
        await other.register()
        assert (await answer(one.store.register, asked))[0] == first
        second, _ = await answer(one.store.register, asked._replace(incarnation="second", epoch=0))
        assert second > first
        await until(lambda: other.live.get(1) is not None and other.live[1].epoch == second)
