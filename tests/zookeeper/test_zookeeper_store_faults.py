import asyncio
import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from member import Member, Proxy, member, on_a_loop, proxy, topic, until

from ottla.runtime.local_zookeeper import LocalEnsemble, LocalZookeeper, Program, ask
from ottla.runtime.zookeeper_log import FENCED
from ottla.runtime.zookeeper_store import SESSION_LOST


async def expire(one: Member) -> None:
    """End a member's session behind its back: a second client takes it over and closes it, unless the member
    is quicker to take it back.
    """
    client = one.store._link._client
    host, port = client.hosts[0]
    session = client.client_id
    lost = one.calls.count("lost")
    while one.calls.count("lost") == lost:
        await asyncio.to_thread(end_session, f"{host}:{port}", session)
        await asyncio.sleep(0.05)


def end_session(address: str, session: tuple[int, bytes]) -> None:
    thief = KazooClient(address, client_id=session, timeout=2)
    # Once the session has ended, the second client gets none either.
    with contextlib.suppress(thief.handler.timeout_exception):
        thief.start(timeout=2)
    thief.stop()
    thief.close()


def state_of(pid: int) -> str:
    return subprocess.run(
        ["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout


def through(between: Proxy, cluster: str) -> str:
    return f"127.0.0.1:{between.port}/{cluster.partition('/')[2]}"


@pytest.mark.parametrize("before", [True, False], ids=["request lost", "answer lost"])
@on_a_loop
async def test_an_append_of_unknown_outcome_is_in_the_log_once(
    shared_zookeeper: LocalZookeeper, cluster: str, before: bool
) -> None:
    async with (
        proxy(shared_zookeeper.port) as between,
        member(through(between, cluster), 1) as one,
        member(cluster, 2) as two,
    ):
        epoch, _ = await one.claim()
        assert await one.append(topic(0)) is None
        for number in range(1, 6):
            between.arm(b"/metadata/log/", before=before)
            answers = [one.propose(topic(number)), one.propose(topic(number + 100))]
            await until(lambda: all(answers), "the answers")  # noqa: B023
            assert answers == [[None], [None]]
        assert between.broken == 5, "each time the connection broke in the middle of it"
        await until(lambda: one.calls.count("suspended") == one.calls.count("back") == 5)
        assert "lost" not in one.calls and "rejected" not in one.calls
        expected = [topic(0)]
        for number in range(1, 6):
            expected += [topic(number), topic(number + 100)]
        assert one.records == expected
        await until(lambda: len(two.records) == len(expected))
        assert two.records == expected
        assert one.controller == (1, epoch)


@pytest.mark.parametrize("before", [True, False], ids=["request lost", "answer lost"])
@on_a_loop
async def test_an_append_of_unknown_outcome_of_a_deposed_controller(
    shared_zookeeper: LocalZookeeper, cluster: str, before: bool
) -> None:
    """The result matches the log: not written if the request was lost, written if only the response was lost."""
    async with (
        proxy(shared_zookeeper.port) as between,
        member(through(between, cluster), 1) as one,
        member(cluster, 2) as two,
    ):
        epoch, _ = await one.claim()
        between.arm(b"/metadata/log/", before=before)
        # It reconnects only after another controller has taken over.
        target, between.target_port = between.target_port, 1
        answer = one.propose(topic(1))
        await until(lambda: between.broken)
        if not before:
            await until(lambda: two.records)
        assert (await two.usurp(1, epoch))[1] is None
        assert await two.append(topic(2)) is None
        between.target_port = target
        await until(lambda: answer, "the answer")
        await until(lambda: one.records == two.records)
        if before:
            assert answer == [FENCED]
            assert two.records == [topic(2)]
        else:
            assert answer == [None]
            assert two.records == [topic(1), topic(2)]


@pytest.mark.parametrize("before", [True, False], ids=["request lost", "answer lost"])
@on_a_loop
async def test_registration_claim_and_name_of_unknown_outcome(
    shared_zookeeper: LocalZookeeper, cluster: str, before: bool
) -> None:
    async with (
        proxy(shared_zookeeper.port) as between,
        member(through(between, cluster), 1) as one,
        member(cluster, 2) as two,
    ):
        between.arm(b'"incarnation"', before=before)
        epoch, error = await one.register()
        assert error is None and between.broken == 1
        await until(lambda: 1 in two.live)
        assert two.live[1].epoch == epoch
        between.arm(b'"node_id":1', before=before)
        assert await one.claim() == (1, None), "the epoch was moved once"
        assert between.broken == 2
        await two.until_controller(1, 1)
        assert await one.append(topic(1)) is None
        between.arm(b"name-1", before=before)
        assert await one.store.cluster_id("name-1") == "name-1"
        assert between.broken == 3
        assert await two.store.cluster_id("name-2") == "name-1"


@on_a_loop
async def test_a_snapshot_in_the_middle_of_which_the_connection_breaks(
    shared_zookeeper: LocalZookeeper, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.runtime.zookeeper_layout.CHUNK_BYTES_MAX", 200)
    async with proxy(shared_zookeeper.port) as between, member(through(between, cluster), 1) as one:
        await one.claim()
        for text in (b"/000003", b'"chunks"'):
            await one.append(*(topic(number) for number in range(30)))
            for before in (True, False):
                between.arm(text, before=before)
                await one.append(topic(100))
                assert await one.snapshot() is None
                async with member(cluster, 2) as two:
                    assert two.records == one.records
                    assert two.calls[0] == ("restored", len(one.records))
        assert between.broken == 4
        assert len(await one.store._link.children("/metadata/snapshot")) == 1


@on_a_loop
async def test_an_expired_session_loses_everything_and_registers_again(cluster: str) -> None:
    async with member(cluster, 1) as one, member(cluster, 2) as two:
        first, _ = await one.register()
        await two.register()
        assert (await one.claim())[1] is None
        assert await one.append(topic(1)) is None
        await until(lambda: 1 in two.live)
        await expire(one)
        await until(lambda: "back" in one.calls[one.calls.index("lost") :])
        tail = [call for call in one.calls if call in ("suspended", "lost", "back")]
        assert tail[-3:] == ["suspended", "lost", "back"]
        # Reported before it is back: it is no live broker any more.
        after = one.calls[one.calls.index("lost") :]
        assert ("live", [2]) in after[: after.index("back")]
        await until(lambda: sorted(two.live) == [2])
        await two.until_controller(-1, 1)
        assert await two.claim() == (2, None)
        assert await two.append(topic(2)) is None
        answer = await one.append(topic(3))
        assert answer is not None
        second, error = await one.register()
        assert error is None and second > first
        await until(lambda: two.live.get(1) is not None and two.live[1].epoch == second)
        await until(lambda: one.records == two.records == [topic(1), topic(2)])


@on_a_loop
async def test_requests_on_reconnect_are_started_once(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with member(cluster, 1) as one:
        await one.register()
        answers: list[object] = []
        asked = 0

        def back(_now_ms: int) -> None:
            # More than once if the connection is back before the session has ended.
            nonlocal asked
            asked += 1
            one.store.register(one.registration(incarnation="second"), lambda *got: answers.append(got))

        monkeypatch.setattr(one, "store_back", back)
        await expire(one)
        await until(lambda: answers and len(answers) == asked)
        # When this is answered, earlier requests have been executed.
        assert (await one.claim())[1] is None
        assert await one.append(topic(1)) is None
        assert len(answers) == asked and one.said == []


@pytest.mark.parametrize("before", [True, False], ids=["request lost", "answer lost"])
@on_a_loop
async def test_an_append_whose_session_ends_is_answered_from_the_log(
    shared_zookeeper: LocalZookeeper, cluster: str, before: bool
) -> None:
    async with (
        proxy(shared_zookeeper.port) as between,
        member(through(between, cluster), 1) as one,
        member(cluster, 2) as two,
    ):
        await one.claim()
        between.arm(b"/metadata/log/", before=before)
        # kazoo reconnects within a tenth of a second, so it is blocked until the second client has the
        # session.
        target, between.target_port = between.target_port, 1
        answer = one.propose(topic(1))
        await until(lambda: between.broken and "suspended" in one.calls)
        client = one.store._link._client
        session = (client._session_id, client._session_passwd)

        await asyncio.to_thread(end_session, f"127.0.0.1:{target}", session)
        assert not answer, "nobody knows yet"
        between.target_port = target
        await until(lambda: answer, "the answer")
        assert "lost" in one.calls
        assert answer == ([SESSION_LOST] if before else [None])
        await until(lambda: one.records == two.records == ([] if before else [topic(1)]))
        # Control ended with the session.
        assert (await two.claim())[1] is None


@on_a_loop
async def test_nothing_of_a_session_that_ended_is_delivered(cluster: str) -> None:
    """Changes while a session expires are reported once, by the watches of the new session."""
    async with member(cluster, 1) as one, member(cluster, 2) as two:
        await two.claim()
        for round_number in range(5):
            assert (await one.register(incarnation=str(round_number)))[1] is None
            before = len(one.calls)
            await asyncio.gather(
                expire(one), *(two.append(topic(100 * round_number + number)) for number in range(20))
            )
            await until(lambda: one.records == two.records)
            await until(lambda: not one.live and not two.live)
            news = one.calls[before:]
            assert ("live", [1]) not in news[news.index("lost") :], "it died, and nobody says otherwise"
        assert len(one.records) == 100


@on_a_loop
async def test_zookeeper_restarts_under_load_and_nothing_is_lost(zookeeper: LocalZookeeper) -> None:
    async with member(zookeeper.address + "/c", 1) as one, member(zookeeper.address + "/c", 2) as two:
        epoch, _ = await one.register()
        await one.claim()
        answers = []
        for restart in range(2):
            for number in range(50):
                answers.append(one.propose(topic(1000 * restart + number)))
                await asyncio.sleep(0)
            await asyncio.to_thread(zookeeper.stop)
            answers.append(one.propose(topic(1000 * restart + 999)))
            await until(lambda: one.calls.count("suspended") == two.calls.count("suspended") == restart + 1)  # noqa: B023
            await asyncio.to_thread(zookeeper.start)
            await until(lambda: one.calls.count("back") == two.calls.count("back") == restart + 1)  # noqa: B023
        await until(lambda: all(answers))
        assert all(answer == [None] for answer in answers)
        await until(lambda: len(two.records) == 102)
        assert one.records == two.records
        assert [record.name for record in one.records] == [
            f"t{1000 * restart + number}" for restart in range(2) for number in (*range(50), 999)
        ]
        assert "lost" not in one.calls
        assert one.live[1].epoch == epoch, "the session, and the registration with it, outlived the restart"


@on_a_loop
async def test_a_paused_server_suspends_and_comes_back(zookeeper: LocalZookeeper) -> None:
    async with member(zookeeper.address, 1, session_timeout_ms=2000) as one:
        await one.claim()
        os.kill(zookeeper.pid, signal.SIGSTOP)
        await until(lambda: state_of(zookeeper.pid).startswith("T"), "the server to stand still")
        answer = one.propose(topic(1))
        await until(lambda: "suspended" in one.calls)
        assert not answer
        os.kill(zookeeper.pid, signal.SIGCONT)
        await until(lambda: answer and "back" in one.calls)
        # A pause as long as the session timeout may end the session; in either case the result matches the
        # log.
        assert one.records == ([topic(1)] if answer == [None] else [])


@on_a_loop
async def test_a_stop_does_not_wait_for_a_server_that_stands_still(zookeeper: LocalZookeeper) -> None:
    one = Member(zookeeper.address, session_timeout_ms=60_000)
    await one.store.connect()
    os.kill(zookeeper.pid, signal.SIGSTOP)
    await until(lambda: state_of(zookeeper.pid).startswith("T"), "the server to stand still")
    await asyncio.wait_for(one.store.close(), 10)
    # The connection's thread ends when the server does.
    zookeeper.stop()


@on_a_loop
async def test_an_ensemble_survives_the_loss_of_its_leader(program: Program, tmp_path: Path) -> None:
    ensemble = LocalEnsemble(program, tmp_path, durable=False)
    await asyncio.to_thread(ensemble.start)
    try:
        (leader,) = (server for server in ensemble.servers if b"Mode: leader" in ask(server.port, b"srvr"))
        async with (
            member(ensemble.address + "/c", 1, session_timeout_ms=10_000) as one,
            member(ensemble.address + "/c", 2, session_timeout_ms=10_000) as two,
        ):
            epoch, _ = await one.register()
            await one.claim()
            assert await one.append(topic(1)) is None
            await asyncio.to_thread(leader.stop)
            assert await one.append(topic(2)) is None
            await until(lambda: one.records == two.records == [topic(1), topic(2)])
            # Without a leader the other servers drop their clients until there is a new one.
            await until(lambda: "back" in one.calls and "back" in two.calls)
            assert "lost" not in one.calls
            assert one.live[1].epoch == epoch
            # It restarts, and then another one may stop.
            await asyncio.to_thread(leader.start)
    finally:
        ensemble.stop()


@on_a_loop
async def test_a_log_that_was_tampered_with_is_said_aloud(cluster: str) -> None:
    async with member(cluster, 1) as one, member(cluster, 2) as two:
        await one.claim()
        await one.append(topic(1))
        await until(lambda: two.records)
        link = one.store._link
        await link.multi([("set", "/metadata/end", b'{"end":7,"snapshot":-1}', -1)])
        await until(lambda: any("has no entry 1, though it ends at 7" in text for text in two.said))
        assert "suspended" in two.calls
        await link.multi([("set", "/metadata/end", b'{"end":1,"snapshot":-1}', -1)])
        await until(lambda: "back" in two.calls)
