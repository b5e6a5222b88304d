"""A broker that cannot reach the cluster store logs that at once, every minute, and when it is over."""

from tests.broker.api.clustered import join_cluster
from tests.broker.conftest import Driver

MINUTE_MS = 60_000


def of_the_store(driver: Driver) -> list[str]:
    return [line for line in driver.said if "cluster store" in line]


def test_an_outage_is_logged_at_once_every_minute_and_at_its_end(driver: Driver) -> None:
    join_cluster(driver)
    driver.broker.store_suspended(driver.now_ms)
    [first] = of_the_store(driver)
    assert "cannot be reached" in first and "Check that ZooKeeper runs" in first
    driver.advance(3 * MINUTE_MS + 1_000)
    lines = of_the_store(driver)
    assert len(lines) == 4
    assert "for 60 s" in lines[1] and "for 180 s" in lines[3]
    driver.broker.store_back(driver.now_ms)
    driver.advance(3 * MINUTE_MS)
    assert len(of_the_store(driver)) == 5
    assert "can be reached again, after 181.0 s" in of_the_store(driver)[4]


def test_a_session_that_expires_meanwhile_is_the_same_outage(driver: Driver) -> None:
    join_cluster(driver)
    driver.broker.store_suspended(driver.now_ms)
    driver.broker.store_lost(driver.now_ms)
    driver.broker.store_suspended(driver.now_ms)
    assert len(of_the_store(driver)) == 1
