"""Small requests with a huge cost: what one request may cost a real broker in CPU and memory, API by API.

Each row of ATTACKS is a request of a few kilobytes at most, or of as many rows as its API allows. A witness
on another connection is answered all the time. The bounds are on CPU time and memory, not on waiting, because
the machine may be busy.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testkit.fuzz.outcome import resident_bytes
from testkit.fuzz.sockets import Asker, Process

API_VERSIONS, METADATA, DESCRIBE_CONFIGS = 18, 3, 32
PARTITIONS = 1000
TOPIC, BROKER, GROUP = 2, 4, 32


def repeated(row: dict[str, Any], times: int = 500) -> list[dict[str, Any]]:
    return [row] * times


def everything_about(kind: int, name: str, times: int = 500) -> dict[str, Any]:
    row = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    return {
        "resources": repeated(row, times),
        "include_synonyms": True,
        "include_documentation": True,
    }


#: Name → (API key, version, fields, CPU seconds, megabytes of memory).
ATTACKS: dict[str, tuple[int, int, dict[str, Any], float, int]] = {
    "Metadata of a large topic 500 times": (METADATA, 9, {"topics": repeated({"name": "large"})}, 0.3, 40),
    "Metadata of a large topic 10,000 times, in version 1": (
        METADATA, 1, {"topics": repeated({"name": "large"}, 10_000)}, 0.3, 40,
    ),
    "DescribeConfigs of the broker 500 times": (DESCRIBE_CONFIGS, 4, everything_about(BROKER, "1"), 0.3, 40),
    "DescribeConfigs of a topic 10,000 times": (
        DESCRIBE_CONFIGS, 4, everything_about(TOPIC, "large", 10_000), 0.4, 40,
    ),
    "DescribeConfigs of a group 10,000 times": (
        DESCRIBE_CONFIGS, 4, everything_about(GROUP, "g", 10_000), 0.4, 40,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    running = Process(Path(tmp_path_factory.mktemp("costs")) / "data")
    asker = Asker(running.address)
    asker.create("large", PARTITIONS, {})
    # Logs are created after the response: until then the broker is busy.
    while asker.ask(35, 4, topics=None).results[0].topics[0].partitions.__len__() < PARTITIONS:
        pass
    asker.close()
    yield running
    assert running.stop() == 0


@pytest.fixture
def witness(process: Process) -> Iterator[Callable[[], int]]:
    """Requests ApiVersions without a pause; returns the number of responses."""
    asker, ended, answered = Asker(process.address), threading.Event(), 0

    def ask() -> None:
        nonlocal answered
        while not ended.wait(0.01):
            assert asker.ask(API_VERSIONS, 0).api_keys
            answered += 1

    thread = threading.Thread(target=ask)
    thread.start()
    yield lambda: answered
    ended.set()
    thread.join()
    asker.close()


@pytest.mark.parametrize("name", ATTACKS)
def test_a_small_request_has_a_small_cost(
    process: Process, witness: Callable[[], int], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    key, version, fields, seconds_max, megabytes_max = ATTACKS[name]
    asker = Asker(process.address)
    # Once without content, so that the import of a version at its first use is not measured.
    asker.ask(key, version, **{name: () for name in fields if isinstance(fields[name], list)})
    # Reset the maximum memory (see proc(5)).
    Path(f"/proc/{process.pid}/clear_refs").write_text("5", encoding="ascii")
    before, seconds = resident_bytes(process.pid), process.cpu_seconds()
    asker.ask(key, version, **fields)
    seconds = process.cpu_seconds() - seconds
    grown = (resident_bytes(process.pid, "VmHWM") - before) / 1e6
    asker.close()
    with capsys.disabled():
        print(f"\n  {name}: {seconds:.2f} CPU seconds, +{grown:.0f} MB, the witness had {witness()} answers")
    assert seconds < seconds_max
    assert grown < megabytes_max
