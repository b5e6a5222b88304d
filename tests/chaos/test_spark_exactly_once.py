"""Spark copies a topic while whatever can die dies: the driver at every step of its commit, tasks, the broker; and one that was taken for dead comes back.

What readers of committed records see at the end is what was to be copied, each record once.
"""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker_proxy import Proxy
from tests.spark.topic_sink.kills import (
    END_TXN,
    INIT_PRODUCER_ID,
    OFFSET_FETCH,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    Driver,
    Moment,
    hold,
    output,
    reach,
    wait_for,
    write_input,
)

ROWS, ROWS_A_BATCH = 1500, 500
MOMENTS = [
    Moment(api_key, answered)
    for api_key in (INIT_PRODUCER_ID, OFFSET_FETCH, PRODUCE, TXN_OFFSET_COMMIT, END_TXN)
    for answered in (False, True)
]
NAMES = {
    INIT_PRODUCER_ID: "InitProducerId", OFFSET_FETCH: "OffsetFetch", PRODUCE: "Produce",
    TXN_OFFSET_COMMIT: "TxnOffsetCommit", END_TXN: "EndTxn",
}  # fmt: skip


def name(moment: Moment) -> str:
    return f"{NAMES[moment.api_key]}-{'after' if moment.answered else 'before'}"


class Copying:
    def __init__(self, proxy: Proxy, start: Callable[[], Any], checkpoint: Path) -> None:
        self.proxy = proxy
        self.start_broker = start
        self.broker = start()
        self.expected = write_input(proxy.address, ROWS)
        self.arguments = (proxy.address, "in", "out", str(checkpoint), f"rows={ROWS_A_BATCH}")

    def check(self) -> None:
        self.proxy.heal()
        assert output(self.proxy.address) == self.expected


@pytest.fixture
def copying(start_broker: Callable[..., Any], tmp_path: Path) -> Iterator[Copying]:
    with Proxy() as proxy:

        def start() -> Any:
            return start_broker(proxy.target_port, f"advertised.listeners={proxy.advertised}")

        yield Copying(proxy, start, tmp_path / "checkpoint")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("staged", [False, True], ids=["here", "staged"])
@pytest.mark.parametrize("moment", MOMENTS, ids=name)
def test_a_driver_killed_at_any_step(copying: Copying, moment: Moment, staged: bool) -> None:
    """Where batches are staged the tasks produce, too: then it is killed in them."""
    arguments = (*copying.arguments, *(["maxMessageBytes=0"] if staged else []))
    hold(copying.proxy, moment)
    driver = Driver(*arguments)
    try:
        reach(copying.proxy, driver, moment)
    finally:
        driver.kill()
    copying.proxy.heal()
    Driver(*arguments).finish()
    copying.check()


@pytest.mark.timeout(600)
def test_a_task_that_fails_is_run_again(copying: Copying, tmp_path: Path) -> None:
    mark = tmp_path / "failed"
    Driver(*copying.arguments, f"fail={mark}", "maxMessageBytes=0", "kafka.batch.size=1024").finish()
    assert mark.exists()
    copying.check()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("moment", MOMENTS[4:], ids=name)
def test_a_broker_killed_in_the_middle_of_a_commit(copying: Copying, moment: Moment) -> None:
    hold(copying.proxy, moment)
    driver = Driver(*copying.arguments)
    try:
        reach(copying.proxy, driver, moment)
        copying.broker.kill()
        copying.proxy.heal()
        copying.start_broker()
    except BaseException:
        driver.kill()
        raise
    driver.finish()
    copying.check()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("moment", MOMENTS, ids=name)
def test_a_driver_that_was_taken_for_dead_comes_back(copying: Copying, moment: Moment) -> None:
    """It stands still in its commit, another one does all the work, and it goes on."""
    hold(copying.proxy, moment)
    zombie = Driver(*copying.arguments)
    try:
        reach(copying.proxy, zombie, moment)
        zombie.signal(signal.SIGSTOP)
        copying.proxy.heal()
        Driver(*copying.arguments).finish()
        assert output(copying.proxy.address) == copying.expected
        zombie.signal(signal.SIGCONT)
        wait_for(lambda: zombie.process.poll() is not None, "end of the zombie")
    finally:
        zombie.kill()
    copying.check()
