"""What all tests share: a free port, and the rule that no test may skip quietly.

A test that is skipped, or expected to fail, proves nothing. Each reason for which that is acceptable is listed
below; any other makes the test fail.
"""

import socket
from collections.abc import Generator

import pytest
from hypothesis import settings

from ottla.broker.api.shared.api_table import APIS, entry_for
from ottla.model.api_key import ApiKey
from ottla.runtime import turns as runtime_turns
from ottla.server.node import Node
from testkit.cpu_time import thread_time_s
from tests import kafka_python_sockets, turns

# reason as the test gives it: why it is acceptable
MAY_SKIP: dict[str, str] = {
    # Of `make chaos`, which is opt-in: it breaks real devices where that is allowed.
    "mounting needs root": "a file system of its own can only be filled or made read-only by who may mount it",
    "strace is not here": "it makes system calls fail beneath the interpreter",
    "no loop device can be had": "a disk that loses its power is an ext4 in a file",
    # Of `make interop`, which is opt-in: it tests what the machine has the tools for.
    "Java 17 is not here": "Apache's own clients and tools need it",
    "Java's compiler is not here": "a runtime alone cannot compile the program on kafka-clients",
    "Maven is not here": "it fetches Apache Kafka's jars",
    "Go is not here": "franz-go and Sarama need it",
    "Node.js and npm are not here": "KafkaJS needs them",
    "neither redis-server nor apt-get is here": "Redis comes from the machine or from its Debian packages",
    "neither MariaDB nor apt-get is here": "as Redis",
    "kcat is not here": "it is a package of the system, which a test does not install",
}

# On a busy machine of two cores a single example may take long for reasons that are none of the code's.
settings.register_profile("ottla", deadline=None)
settings.load_profile("ottla")


def refusal(reason: str) -> str:
    return (
        f"skipped or expected to fail, for a reason that is not listed: {reason!r}\n"
        "Let the test run, or add the reason to MAY_SKIP in tests/conftest.py and say why it is acceptable."
    )


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Pytest hands over the place and "Skipped: reason"; an expected failure bears its reason apart."""
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail).removeprefix("reason: ")
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and skip_reason(report) not in MAY_SKIP:
        report.longrepr = refusal(skip_reason(report))
        report.outcome = "failed"
        if hasattr(report, "wasxfail"):
            del report.wasxfail
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """As above, for a whole module that skips itself while it is imported."""
    report = yield
    if report.skipped and skip_reason(report) not in MAY_SKIP:
        report.longrepr = refusal(skip_reason(report))
        report.outcome = "failed"
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that say how long they may take begin first: at the end nobody should have to wait for one.

    Not where processes get them in runs, of which one would get all the long ones.
    """
    if getattr(config.option, "loadgroup", False):
        items.sort(key=_limit_s, reverse=True)


def pytest_collection_finish() -> None:
    """All test modules are imported by now."""
    kafka_python_sockets.install()


def _limit_s(item: pytest.Item) -> float:
    limit = item.get_closest_marker("timeout")
    return float(limit.args[0]) if limit is not None and limit.args else 0.0


# Brokers inside this process do not answer for the garbage of the tests.
runtime_turns.thread_time = thread_time_s

# The first request of a process imports kio and compiles its messages (26 ms of CPU on a quiet machine). All clients begin with
# ApiVersions: brokers inside this process find it ready, those in processes of their own are measured with it.
for _version in range(APIS[ApiKey.API_VERSIONS].oldest, APIS[ApiKey.API_VERSIONS].newest + 1):
    entry_for(ApiKey.API_VERSIONS, _version)

_close = Node._close


def _closed(node: Node, *, mark: bool = True) -> list[str]:
    """As `Node._close`: brokers inside this process tell their longest turns too."""
    problems = _close(node, mark=mark)
    turns.look_at([f"the longest turn of the event loop: {node.longest_turn}"], turns.EMBEDDED_BOUND_MS)
    return problems


Node._close = _closed  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """No broker that has ended in a test, or before it, has held its event loop for too long (`tests/turns.py`)."""
    yield
    exceeded, turns.exceeded[:] = list(turns.exceeded), []
    if exceeded and item.get_closest_marker("long_turns") is None:
        raise AssertionError(f"a broker held its event loop for too long: {exceeded}")


@pytest.fixture
def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
