"""A thirtieth of a million mutated requests, into the core and over sockets. Failures print the seed and the
command that repeats them.
"""

import struct
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.api.shared.api_table import APIS, NoResponse
from ottla.broker.coordinators.group_coordinator import OFFSETS_TOPIC
from ottla.groups.classic_group import ClassicGroup
from ottla.groups.consumer_group import ConsumerGroup
from ottla.runtime.descriptors import share_out
from ottla.transactions.formats import State
from testkit.fuzz import core, sockets
from testkit.fuzz.__main__ import main
from testkit.fuzz.outcome import Failed, megabytes, resident_bytes
from testkit.fuzz.valid_requests import frame_of, served_versions

#: Together more than thirty thousand: the core runs twice.
IN_CORE = 14_000
OVER_SOCKETS = 3_000
#: Requests of megabytes are for `make fuzz`.
SHAPED_BYTES_MAX = 20_000


@pytest.mark.timeout(400)
@pytest.mark.parametrize("half", [0, 1])
def test_mutated_requests_into_the_core(half: int, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    seed += half
    before = resident_bytes()
    tally = core.run_core(IN_CORE, seed, bytes_max=SHAPED_BYTES_MAX)
    after = resident_bytes()
    with capsys.disabled():
        print(f"\n  seed {seed}: {tally}; memory {megabytes(before)} before, {megabytes(after)} after")
    assert tally["requests"] == IN_CORE
    # Neither is rare: mutations are neither too tame nor too wild.
    assert min(tally["answered"], tally["closed"], tally["refused"]) > IN_CORE // 20
    assert after - before < 150 << 20


def test_requests_over_sockets(seed: int, scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The bounds of `make fuzz` on the witness's wait (0.3 s) and on memory (100 MB) hold here too."""
    report = sockets.run_sockets(OVER_SOCKETS, seed, scratch / "data", bytes_max=SHAPED_BYTES_MAX)
    with capsys.disabled():
        print(f"\n  seed {seed}: {report}")
    assert report.tally["requests"] == OVER_SOCKETS
    assert report.attacked.rounds > 20
    assert report.peak_bytes < report.before_bytes + (200 << 20)
    before, after = report.descriptors
    # The connections of the attack are closed, and so are the files of deleted topics.
    assert after.sockets <= before.sockets
    assert after.deleted == ()
    # The broker keeps used files open, up to its share of the descriptors.
    assert after.others <= share_out(clustered=False).files + 64
    # A few kinds of refusals every five seconds, whatever the number of refused connections.
    assert report.said < 200
    assert report.idle_cpu < 0.1


# --- the fuzzer itself ------------------------------------------------------------------------------------------------


def break_api(monkeypatch: pytest.MonkeyPatch, key: int, handler: Any) -> None:
    """Every version of an API gets another handler, as if it had that fault."""
    monkeypatch.setitem(APIS, key, APIS[key]._replace(handler=handler))


def test_an_exception_in_a_handler_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: Any) -> Any:
        raise KeyError("broken on purpose")

    break_api(monkeypatch, 71, fail)
    with pytest.raises(
        Failed, match=r"broken on purpose(.|\n)*the request: [0-9a-f]+(.|\n)*--seed 1 --round"
    ):
        core.run_core(2000, 1)


def test_an_answer_of_another_version_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = APIS[60].handler

    def longer(broker: Any, call: Any, request: Any, now_ms: int) -> Any:
        body = call.entry.encode(real(broker, call, request, now_ms)) + b"\0"
        broker.reply(call, [struct.pack(">iib", len(body) + 5, call.correlation_id, 0) + body])
        return NoResponse.DONE

    break_api(monkeypatch, 60, longer)
    with pytest.raises(Failed, match=r"API 60 version . *: 1 bytes after the answer"):
        core.run_core(2000, 1)


def test_a_record_that_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(self: Any) -> None:
        replica = self.broker.partitions.by_name[core.WITNESS].replicas[0]
        replica.log.truncate(replica.log.next_offset - 1, self.now_ms)
        self.stop()
        self.start()
        self._read_witness(0)

    monkeypatch.setattr(core.Round, "_end", lose)
    with pytest.raises(Failed, match="the witness reads"):
        core.run_core(200, 1)


def test_the_same_seed_makes_the_same_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[bytes]] = []
    receive = core.Round.receive

    def remember(self: Any, client: Any, frame: bytes) -> None:
        sent[-1].append(frame)
        receive(self, client, frame)

    monkeypatch.setattr(core.Round, "receive", remember)
    for _ in range(2):
        sent.append([])
        core.run_round(3, 0, 500)
    assert sent[0] == sent[1]


def test_every_api_in_every_version_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each can be decoded before it is mutated."""
    seen: set[tuple[int, int]] = set()
    made = core.Round("all", {})
    for key, version in served_versions():
        closed = made.tally["closed"]
        attacker = core.Attacker(made)
        frame = frame_of(key, version, 5, made.maker.body(key, version))
        attacker.expected.ask(frame)
        made.receive(attacker.client, frame)
        # A failed produce with acks=0 may close its connection.
        assert key == 0 or made.tally["closed"] == closed, (key, version)
        seen.add((key, version))
    assert seen == set(served_versions())


def test_a_request_is_replayed_from_its_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "001200000000000affff", "ffff"]) == 0
    assert "1 answered" in capsys.readouterr().out


def test_requests_about_groups_go_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every group API is called, and some requests succeed in joining, of both protocols, and committing."""
    asked: set[int] = set()
    members: set[type] = set()
    ends: list[int] = []
    receive, look = core.Round.receive, core.Round._members

    def remember(self: Any, client: Any, frame: bytes) -> None:
        asked.add(int.from_bytes(frame[:2], "big"))
        receive(self, client, frame)

    def note(self: Any) -> Any:
        for shard in self.broker.groups.shards:
            members.update(type(group) for group in shard.groups.values() if group.members)
            ends.append(len(shard.offsets.by_group))
        return look(self)

    monkeypatch.setattr(core.Round, "receive", remember)
    monkeypatch.setattr(core.Round, "_members", note)
    core.run_core(5_000, 1, bytes_max=SHAPED_BYTES_MAX)
    assert asked >= {8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47, 68, 69}
    assert members == {ClassicGroup, ConsumerGroup}
    assert max(ends) > 0


def test_requests_about_transactions_go_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every transaction API is called, and some requests begin transactions, write to them, commit offsets
    and end them.
    """
    asked: set[int] = set()
    states: set[State] = set()
    opened: set[str] = set()
    receive = core.Round.receive

    def remember(self: Any, client: Any, frame: bytes) -> None:
        asked.add(int.from_bytes(frame[:2], "big"))
        receive(self, client, frame)
        for shard in self.broker.transactions.shards:
            states.update(transaction.state for transaction in shard.transactions.values())
        for replica in self.broker.partitions.replicas():
            transactions = replica.log.producers.transactions if replica.opened else None
            if transactions is not None and transactions.open:
                opened.add("offsets" if replica.topic == OFFSETS_TOPIC else "records")

    monkeypatch.setattr(core.Round, "receive", remember)
    core.run_core(4_000, 1, bytes_max=SHAPED_BYTES_MAX)
    assert asked >= {22, 24, 25, 26, 27, 28, 61, 65, 66}
    assert states >= {State.EMPTY, State.ONGOING, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}
    assert opened == {"offsets", "records"}
