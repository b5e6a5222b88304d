"""What our broker answers to requests about transactions that nobody should send is what Apache Kafka answers: the same table
(`tests/broker/api/mischief.py`) against a Kafka. Where Kafka does otherwise the table says so, and why."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.api.mischief import ATTEMPTS, SETTINGS, Scene, codes_of
from tests.interop.by_hand import There
from tests.interop.kafka_directory import running
from tests.interop.programs import Java


@pytest.fixture
def kafka(java: Java, tmp_path: Path) -> Iterator[There]:
    with running("4", tmp_path, SETTINGS) as process, There(process.address) as there:
        yield there


def test_kafka_refuses_the_same_with_the_same_errors(kafka: There) -> None:
    scene = Scene(kafka)
    different, changed = [], []
    # Those that change something come last, so that the others find what they are about.
    for name, attempt in sorted(ATTEMPTS, key=lambda row: row[1].kafka_changes):
        if not attempt.in_kafka:
            continue
        before = scene.told()
        expected = attempt.code if attempt.kafka is None else attempt.kafka
        codes = codes_of(attempt.make(scene))
        if codes != (expected if isinstance(expected, set) else {expected}):
            different.append((name, codes, expected))
        if not attempt.kafka_changes and scene.told() != before:
            changed.append(name)
    assert not different
    assert not changed
