"""docs/transactions.md: its programs and commands run as written, and its settings exist."""

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import ottla
from ottla.client.metadata import TopicPartition
from ottla.config.broker_table import BROKER
from ottla.config.topic_table import TOPIC
from tests.cli.conftest import Run
from tests.cli.open_transactions import begin, committed, lose_coordinators
from tests.docs_examples import TRANSACTIONS, indented, programs

ADDRESS = "127.0.0.1:9092"
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "transaction.state.log.num.partitions": "2",
    "offsets.topic.num.partitions": "2",
}
TOPICS = ("orders", "bills", "shouts")
ORDERS = TopicPartition("orders", 0)


@contextmanager
def running(home: Path, partitions: int = 1) -> Iterator[str]:
    """A broker with the topics of the page; its address."""
    with ottla.Broker(data_dir=str(home), config=SETTINGS) as broker:
        with ottla.Admin(broker.address) as admin:
            for topic in set(TOPICS) - set(admin.list_topics()):
                admin.create_topic(topic, partitions)
        yield broker.address


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with running(tmp_path) as address:
        yield address


def test_the_programs_do_what_the_page_says(address: str) -> None:
    clients = [
        re.findall(r"^from (\w+) import", program, re.MULTILINE)[0] for program in programs(TRANSACTIONS)
    ]
    assert clients == ["kafka", "aiokafka", "confluent_kafka"]
    for program in programs(TRANSACTIONS):
        assert ADDRESS in program
        # A shorter timeout at the end.
        text = program.replace(ADDRESS, address).replace("timeout=5", "timeout=2")
        exec(compile(text, str(TRANSACTIONS), "exec"), {})
    seen = {topic: committed(address, TopicPartition(topic, 0)) for topic in TOPICS}
    assert seen == {
        "orders": [b"order 1", b"order 2"], "bills": [b"bill 1", b"bill 2"], "shouts": [b"ORDER 1", b"ORDER 2"],
    }  # fmt: skip
    with ottla.Admin(address) as admin:
        # The commit marker of the first transaction is between the two records.
        assert admin.group_offsets("shout")[ORDERS] in (3, 4)


def test_the_commands_do_what_the_page_says(tmp_path: Path, run_here: Callable[[str], Run]) -> None:
    with running(tmp_path, partitions=2) as address:
        _lost = begin(address, "lost-1", ORDERS)
    lose_coordinators(tmp_path)
    with running(tmp_path) as address:
        _shouting = begin(address, "shout-1", ORDERS)
        run = run_here(address)
        done = []
        for line in indented(TRANSACTIONS):
            ended = run(*shlex.split(line.replace("4711", "0"))[1:])
            assert ended.code == 0, (line, ended.err)
            done.append(ended.out)
        assert len(done) == 10
        assert "shout-1  Ongoing" in "".join(done)
        # Both are aborted, so that nothing is open.
        with ottla.Admin(address) as admin:
            open_ones = [each.transaction_start for each in admin.describe_producers([ORDERS])[ORDERS]]
        assert open_ones == [None, None]


def test_the_settings_of_the_page_are_settings() -> None:
    rows = re.findall(r"^\| (`.*`) \| (broker|topic) \|", TRANSACTIONS.read_text(), re.MULTILINE)
    named = {name for cell, _where in rows for name in re.findall(r"`([a-z.]+)`", cell)}
    assert len(named) == 6 and named <= {*BROKER, *TOPIC}
