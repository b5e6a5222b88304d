"""The shapes of requests: each is what its name says, for every API and version, and the limits hold."""

import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ottla.broker.api.shared.api_table import APIS
from ottla.wire.decode import MalformedMessage, decode_request
from ottla.wire.schema import request_header_is_flexible
from testkit.fuzz import core, shapes, sockets
from testkit.fuzz.core import Round
from testkit.fuzz.outcome import Failed
from testkit.fuzz.process import Descriptors
from testkit.fuzz.shapes import Shaper
from testkit.fuzz.sockets import Report
from testkit.fuzz.witness import Phase, Scheduled, Witness, held_s

METADATA, TOPICS_OF_METADATA = 3, "topics"


@pytest.fixture
def world() -> Round:
    return Round("shapes", {})


def decoded(frame: bytes) -> Any:
    key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
    client_id = int.from_bytes(frame[8:10], "big")
    start = 10 + client_id + (1 if request_header_is_flexible(key, version) else 0)
    return decode_request(key, version, memoryview(frame), start)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of megabytes are for `make fuzz`."""
    monkeypatch.setattr(shapes, "_BYTES", (2_000, 2_000, 2_000, 20_000, 20_000))


def made(world: Round, shape: str, count: int) -> list[bytes]:
    make = getattr(Shaper(Random(1), world.maker), f"_{shape}")
    return [make(number) for number in range(count)]


@pytest.mark.parametrize("shape", ["repeated_rows", "huge_counts", "boundary_strings"])
def test_every_api_is_made_in_this_shape(world: Round, shape: str) -> None:
    frames = made(world, shape, 600)
    assert {int.from_bytes(frame[:2], "big") for frame in frames} == APIS.keys()
    whole = 0
    for frame in frames:
        try:
            decoded(frame)
            whole += 1
        except MalformedMessage:
            # A string that is not UTF-8, or more items than are decoded.
            continue
    assert whole > len(frames) * 0.7


def test_no_shape_is_larger_than_it_may_be(world: Round) -> None:
    """Twenty gigabytes once, of topics times rows times batches."""
    shaper = Shaper(Random(3), world.maker, 20_000)
    frames = [shaper.request(number) for number in range(3000)]
    # Boundary strings are extra: a whole message may be as long as its strings.
    assert max(len(each.frame) for each in frames if each.shape != "boundary_strings") < 60_000


def test_rows_are_repeated_many_times(world: Round, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "_BYTES", (20_000,) * 5)
    most: Counter[Any] = Counter()
    for frame in made(world, "repeated_rows", 600):
        if int.from_bytes(frame[:2], "big") == METADATA:
            most.update(Counter(repr(topic) for topic in decoded(frame).topics or ()))
    assert max(most.values()) > 400


def test_strings_of_every_boundary_and_kind(world: Round) -> None:
    shaper = Shaper(Random(2), world.maker)
    texts = [shaper._boundary_string() for _ in range(2000)]
    assert {len(text.encode()) for text in texts} >= {0, 1, 249, 250, 255, 256, 32_767, 32_768, 65_535}
    assert {".", "..", "\0"} <= set(texts)
    assert any("\x1b" in text for text in texts)
    assert any(b"\xed\xa0\x80" in frame for frame in made(world, "boundary_strings", 300))


def test_admin_calls_build_on_each_other(world: Round) -> None:
    """Topics are created, extended and deleted; configs, groups and transactions exist in between."""
    client = core.Attacker(world)
    shaper = Shaper(world.random, world.maker)
    topics: list[int] = []
    for number in range(700):
        frame = shaper._admin_call(number)
        client.expected.ask(frame)
        world.receive(client.client, frame)
        if client.client.closed:
            client = core.Attacker(world)
        topics.append(sum(name.startswith("admin-") for name in world.broker.image.topics))
    assert max(topics) > 4
    assert any(later < earlier for earlier, later in pairwise(topics))
    configured = {kind for kind, _name in world.broker.image.configs}
    assert configured >= {2, 4, 32}
    assert any(len(shard.offsets.by_group) for shard in world.broker.groups.shards)
    assert any(shard.transactions for shard in world.broker.transactions.shards)


def test_a_request_that_holds_the_loop_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def hold(*_arguments: Any) -> Any:
        until = time.thread_time() + core.HELD_S_MAX + 0.05
        while time.thread_time() < until:
            pass
        return {"error_code": 0, "api_keys": ()}

    monkeypatch.setitem(APIS, 60, APIS[60]._replace(handler=hold))
    with pytest.raises(Failed, match=r"held the loop for \d+ ms(.|\n)*again: .*core --seed 1 --round"):
        core.run_core(2000, 1)


def test_everything_that_fails_is_listed_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: Any) -> Any:
        raise KeyError("broken on purpose")

    monkeypatch.setitem(APIS, 60, APIS[60]._replace(handler=fail))
    told: list[str] = []
    with pytest.raises(Failed, match="kinds of requests failed"):
        core.run_core(3000, 1, round_size=1000, keep_going=True, tell=told.append)
    assert any("broken on purpose" in line for line in told)


def test_every_array_of_an_api_is_filled_up_and_its_cost_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = core.Costs(METADATA, 100, 1).measured()
    assert len(found) >= 6
    assert {label.split(" of ")[0] for _held_s, label in found} >= {
        "repeated topics",
        "smallest topics",
        "numbered topics",
    }
    monkeypatch.setattr(core, "APIS", {60: APIS[60], METADATA: APIS[METADATA]})
    assert "the most expensive" in core.run_costs(100, 1, 1, lambda _text: None)
    monkeypatch.setattr(core, "HELD_S_MAX", 0.0)
    told: list[str] = []
    with pytest.raises(
        Failed, match=r"requests hold the loop(.|\n)*again: .* costs --seed 1 --bytes-max 100"
    ):
        core.run_costs(100, 1, 1, told.append)
    assert any("of metadata (API 3)" in line for line in told)


# --- the witness --------------------------------------------------------------------------------------------------------


def mark_for_ever(witness: Witness) -> None:
    while True:
        witness.mark()


def test_the_witness_measures_and_finds_what_is_wrong(scratch: Path) -> None:
    process = sockets.Process(scratch / "data")
    try:
        witness = Witness(process.address, process.pid)
        while not (phase := witness.mark()).rounds:
            pass
        assert 0 < phase.held_s <= phase.wall_s
        # Its topic is deleted.
        admin = sockets.Asker(process.address)
        admin.ask(20, 6, topics=[{"name": core.WITNESS}], timeout=1000)
        admin.close()
        with pytest.raises(Failed, match="the witness noticed"):
            mark_for_ever(witness)
        witness.kill()
    finally:
        process.stop()


def test_a_wait_is_the_brokers_doing_unless_its_thread_could_not_run() -> None:
    idle = Scheduled(5.0, 7.0), Scheduled(5.0, 7.0)
    assert held_s(0.4, idle, idle) == 0.4, "a broker that sleeps has let the witness wait"
    assert held_s(0.4, (Scheduled(5.0, 7.0), Scheduled(5.1, 7.25)), idle) == pytest.approx(0.15)
    # Both were ready at the same time.
    busy = Scheduled(5.0, 7.0), Scheduled(5.1, 7.3)
    assert held_s(0.4, busy, busy) == pytest.approx(0.1)


_FEW = Descriptors(sockets=2, deleted=(), others=10)


def report(**more: Any) -> Report:
    fields = {
        "tally": core.Tally(), "quiet": Phase(100, 0, 0.01, 0.01), "attacked": Phase(1000, 0, 0.5, 0.2), "before_bytes": 50_000_000,
        "after_bytes": 100_000_000, "peak_bytes": 0, "descriptors": (_FEW, _FEW), "said": 1, "idle_cpu": 0.0,
    }  # fmt: skip
    return Report(**fields | more)


def test_wait_and_growth_are_bounded() -> None:
    sockets._check_bounds(report())
    with pytest.raises(Failed, match="waited for 400 ms, at most 300"):
        sockets._check_bounds(report(attacked=Phase(1000, 0, 0.4, 0.4)))
    with pytest.raises(Failed, match="grown by 101 MB"):
        sockets._check_bounds(report(after_bytes=151_000_000))
    with pytest.raises(Failed, match="300 of 1000 commits"):
        sockets._check_bounds(report(attacked=Phase(1000, 300, 0.1, 0.1)))
    # If an idle broker is slow already, the bound follows.
    sockets._check_bounds(report(quiet=Phase(100, 0, 0.1, 0.1), attacked=Phase(1000, 0, 0.4, 0.4)))
