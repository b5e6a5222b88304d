"""The driver is killed at four points of the commit, one after the other, while it copies a topic; every row is there once. The other points are in `tests/chaos`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.broker_proxy import Proxy
from tests.spark.topic_sink.driver import copy
from tests.spark.topic_sink.kills import (
    END_TXN,
    INIT_PRODUCER_ID,
    PRODUCE,
    Driver,
    Moment,
    hold,
    output,
    reach,
    write_input,
)

POINTS = (
    Moment(INIT_PRODUCER_ID, answered=False),
    Moment(PRODUCE, answered=True),
    Moment(END_TXN, answered=False),
    Moment(END_TXN, answered=True),
)


@pytest.mark.timeout(600)
def test_a_driver_killed_in_its_commit_leaves_nothing_out_and_nothing_twice(
    start_broker: Callable[..., Any], spark: SparkSession, tmp_path: Path
) -> None:
    with Proxy() as proxy:
        start_broker(proxy.target_port, f"advertised.listeners={proxy.advertised}")
        expected = write_input(proxy.address, 600)
        arguments = (proxy.address, "in", "out", str(tmp_path / "checkpoint"), "rows=300")
        for moment in POINTS:
            hold(proxy, moment)
            driver = Driver(*arguments)
            try:
                reach(proxy, driver, moment)
                if moment != POINTS[-1]:
                    assert output(proxy.address, settled=False) == []
            finally:
                driver.kill()
        proxy.heal()
        copy(spark, *arguments)
        assert output(proxy.address) == expected
