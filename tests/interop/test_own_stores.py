"""Offsets in stores of the consumers' own (D4): with the results in one transaction, on a real Redis and a real MariaDB.

SQLite is in the default tests (`tests/seeds/test_consumers.py`), with the program of docs/offsets.md.
"""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.crash.broker_process import BrokerProcess
from tests.interop.databases import mariadb_server, redis_server
from tests.interop.own_store import STORES
from tests.interop.programs import HERE
from tests.interop.test_java_client import create
from tests.killed_consumers import PARTITIONS, Consumers, count_while_killed, produce_amounts

SERVERS = {"redis": redis_server, "mariadb": mariadb_server}
COUNT = 15_000
KILLS = 8


@pytest.mark.parametrize("kind", SERVERS)
def test_everything_is_counted_once_whoever_is_killed(
    start_broker: Any, topic: str, kind: str, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    broker: BrokerProcess = start_broker(group_initial_rebalance_delay_ms="100")
    create(broker, topic, PARTITIONS)
    directory = tmp_path / kind
    directory.mkdir()
    with SERVERS[kind](directory) as port:
        store = STORES[kind](port)
        expected = produce_amounts(broker.address, topic, COUNT, seed)
        command = [str(HERE / "own_store.py"), kind, broker.address, topic, str(port)]
        with Consumers(command, store.progress, dice, store.is_free) as consumers:
            count_while_killed(consumers, COUNT, dice, KILLS)
            assert store.totals() == expected, f"seed {seed}"
