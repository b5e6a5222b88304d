"""The stream of the README runs as written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import ottla
from tests.docs_examples import DOCS, blocks
from tests.running_broker import RunningBroker
from tests.sdk.reading import values


def test_the_stream_of_the_readme(
    spark: SparkSession,
    start_broker: Callable[..., RunningBroker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    address = start_broker().address
    with ottla.Producer(address) as producer:
        producer.send("orders", b"two pounds of tea", key=b"alice")
    [program] = blocks(DOCS.parent / "README.md", "py")
    names: dict[str, Any] = {"spark": spark}
    exec(program.replace("127.0.0.1:9092", address).replace("checkpoints/", f"{tmp_path}/"), names)
    try:
        names["query"].processAllAvailable()
    finally:
        names["query"].stop()
    assert values(address, "shouted", isolation_level="read_committed") == [b"TWO POUNDS OF TEA"]
