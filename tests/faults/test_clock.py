"""The wall clock is set while the broker runs. Who waits does not notice; what is dated follows."""

import time
from pathlib import Path

import pytest

from tests.crash.broker_process import FETCH, PRODUCE, Wire, batch_of, fetching, producing
from tests.crash.failing import SYNCS
from tests.faults.broken import BreakableBroker, Ledger, told

HOUR_S = 3600
DAY_S = 24 * HOUR_S
RETENTION = {"log.retention.check.interval.ms": "100"}


def append_time_ms(wire: Wire, topic: str) -> int:
    """When the broker says that a record was appended."""
    answer = wire.ask(PRODUCE, 9, **producing(topic, batch_of(b"dated")))
    row = answer.responses[0].partition_responses[0]
    assert row.error_code.value == 0
    return int(row.log_append_time.timestamp() * 1000)


@pytest.mark.parametrize("step_s", [-DAY_S, DAY_S], ids=["back", "forward"])
def test_a_clock_that_is_set(step_s: int, tmp_path: Path, free_port: int) -> None:
    ledger = Ledger("orders")
    with BreakableBroker(tmp_path / "data", free_port, RETENTION) as broker:
        with (
            Wire(broker.address) as wire,
            Wire(broker.address) as patient,
            Wire(broker.address) as brief,
            Wire(broker.address) as slow,
        ):
            # The client's clock is right, which is a day ahead of one that was set back.
            wire.create(
                "orders", retention_ms=str(HOUR_S * 1000), segment_bytes="2000",
                message_timestamp_after_max_ms=str(2 * DAY_S * 1000),
            )  # fmt: skip
            wire.create("dated", message_timestamp_type="LogAppendTime")
            for number in range(4):
                ledger.produce(wire, b"%d" % number, bytes(1500))
            assert abs(append_time_ms(wire, "dated") - time.time() * 1000) < 10_000
            patient.send(FETCH, 11, **fetching("orders", 8, max_wait_ms=300_000))
            brief.send(FETCH, 11, **fetching("dated", 1, max_wait_ms=2_500))
            # A produce that waits for its sync, with a time-out far shorter than the step.
            broker.delay(SYNCS, 1.5, "*/dated-0/*.log").set_clock(step_s)
            slow.send(PRODUCE, 9, **producing("dated", batch_of(b"slow")))
            started = time.monotonic()
            back = step_s < 0
            said = (
                told(broker, "the clock was set back") if back else told(broker, "the clock was set forward")
            )
            assert f"by {DAY_S - 1} s" in said or f"by {DAY_S} s" in said
            assert slow.receive().responses[0].partition_responses[0].error_code.value == 0
            assert brief.receive().responses[0].partitions[0].error_code.value == 0
            assert time.monotonic() - started < 10
            # What is dated goes by the new time.
            assert abs(append_time_ms(wire, "dated") - (time.time() + step_s) * 1000) < 10_000
            # Retention has looked several times by now, and the records are not old.
            assert wire.end_offset("orders", timestamp=-2) == 0
            ledger.check(wire)
            ledger.produce(wire, b"wakes the patient one")
            assert patient.receive().responses[0].partitions[0].error_code.value == 0
            # Look-ups by time find what was dated on either side of the step.
            assert wire.end_offset("dated", timestamp=int(time.time() * 1000) - 60_000) == 0
        broker.heal()
        broker.wait_for("the clock was set forward" if step_s < 0 else "the clock was set back")
        assert broker.stop() == 0
        broker.start()
        with Wire(broker.address) as wire:
            ledger.check(wire)


def test_a_broker_whose_clock_was_ahead_when_it_stopped(tmp_path: Path, free_port: int) -> None:
    """Its records are dated a day ahead; the next run has the right time, appends, and finds all of it."""
    ledger = Ledger("orders")
    with BreakableBroker(tmp_path / "data", free_port, RETENTION).set_clock(DAY_S) as broker:
        with Wire(broker.address) as wire:
            wire.create("orders", message_timestamp_type="LogAppendTime", retention_ms=str(HOUR_S * 1000))
            for number in range(3):
                ledger.produce(wire, b"%d" % number)
        broker.kill()
        broker.heal().start()
        with Wire(broker.address) as wire:
            for number in range(3, 6):
                ledger.produce(wire, b"%d" % number)
            ledger.check(wire)
            tomorrow_ms = int((time.time() + DAY_S) * 1000)
            assert wire.end_offset("orders", timestamp=tomorrow_ms - 60_000) == 0
            assert wire.end_offset("orders", timestamp=tomorrow_ms + 60_000) == -1
