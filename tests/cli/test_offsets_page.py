"""docs/offsets.md: its commands and programs run as written, and its quoted output is the real output.

The program with a store of its own is run, and killed, in `tests/seeds/test_consumers.py`.
"""

import shlex
import threading
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest

import ottla
from tests.cli.conftest import Run
from tests.docs_examples import OFFSETS, indented, programs

ADDRESS = "127.0.0.1:9092"
PATIENCE_S = 30


@pytest.fixture(scope="module")
def broker() -> Iterator[Any]:
    """A separate broker: the page uses the topic `orders` and the group `billing`."""
    settings = {"group.initial.rebalance.delay.ms": "100"}
    with ottla.Broker(config=settings) as broker:
        with ottla.Admin(broker.address) as admin:
            admin.create_topic("orders", 2)
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.address, "log_level": 0})
        for at in range(10):
            producer.produce("orders", f"order {at}", partition=at % 2)
        assert producer.flush(PATIENCE_S) == 0
        yield broker


@pytest.fixture
def run(broker: Any, run_here: Callable[[str], Run]) -> Run:
    return run_here(broker.address)


def commands() -> list[list[str]]:
    return [shlex.split(line)[1:] for line in indented(OFFSETS) if line.startswith("ottla ")]


def test_the_programs_and_then_the_commands_do_what_the_page_says(
    broker: Any, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    automatic, by_hand, _own_store = programs(OFFSETS)
    for number, program in enumerate((automatic, by_hand)):
        assert ADDRESS in program and '"billing"' in program
        # A shorter timeout at the end, and a separate group for each: each reads all.
        text = program.replace(ADDRESS, broker.address).replace("poll(5)", "poll(2)")
        text = text.replace('"billing"', f'"billing-{number}"')
        exec(compile(text, str(OFFSETS), "exec"), {"Consumer": confluent_kafka.Consumer})
        assert sorted(capsys.readouterr().out.split("\n")[:-1]) == [f"b'order {at}'" for at in range(10)]
        with ottla.Admin(broker.address) as admin:
            assert sorted(admin.group_offsets(f"billing-{number}").values()) == [5, 5]
    with ottla.Admin(broker.address) as admin:
        admin.set_group_offsets("billing", admin.group_offsets("billing-0"))

    seen: list[tuple[list[str], Any]] = []
    for arguments in commands():
        ended = run(*arguments)
        assert ended.code == 0, (arguments, ended.err)
        if arguments[1] == "reset":
            with ottla.Admin(broker.address) as admin:
                found = {place.partition: at for place, at in admin.group_offsets("billing").items()}
            seen.append((arguments[3:], [found[0], found[1]]))
    assert seen == [
        (["--to-earliest", "--dry-run"], [5, 5]),
        (["--to-earliest"], [0, 0]),
        (["--to-latest"], [5, 5]),
        (["--to-offset", "2"], [2, 2]),
        (["--to-time", "2026-01-31T12:00:00+00:00"], [0, 0]),
        (["--to-time", "1769860800000"], [0, 0]),
        (["--shift", "-2"], [0, 0]),
        (["--topic", "orders", "--to-earliest"], [0, 0]),
        (["--topic", "orders:0,1", "--to-latest"], [5, 5]),
    ]
    assert "billing" not in {line.split()[0] for line in run("group", "list").out.splitlines()}


def test_a_group_with_members_is_refused_as_quoted(broker: Any, run: Run) -> None:
    [quoted] = [line for line in indented(OFFSETS) if not line.startswith("ottla ")]
    over, ready = threading.Event(), threading.Event()

    def stay() -> None:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": broker.address, "group.id": "stays", "log_level": 0}
        )
        consumer.subscribe(["orders"])
        while not over.is_set():
            consumer.poll(0.1)
            if consumer.assignment():
                ready.set()
        consumer.close()

    thread = threading.Thread(target=stay)
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        refused = run("group", "reset", "stays", "--topic", "orders", "--to-earliest")
    finally:
        over.set()
        thread.join(PATIENCE_S)
    assert refused.code == 1 and quoted.replace("'billing'", "'stays'") in refused.err
