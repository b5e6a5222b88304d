"""Bug 1: hundreds of rebalances whose responses cannot be encoded. Periodic work on the same timers goes on."""

import struct
import time
from pathlib import Path
from typing import Any

import pytest

import ottla
from ottla.broker.api.shared import api_table
from ottla.broker.storage import log_maintenance
from tests.peer import PATIENCE_S, Peer

JOIN_GROUP, FIND_COORDINATOR = 11, 10
GROUPS = 420


def test_rebalances_that_cannot_be_answered_stop_no_periodic_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder_of = api_table.response_encoder

    def response_encoder(key: int, version: int) -> Any:
        if (key, version) != (JOIN_GROUP, 5):
            return encoder_of(key, version)

        def too_long(_response: Any) -> bytes:
            # Like a string of more than 32,767 bytes, which flexible versions accept and older ones cannot
            # encode.
            raise struct.error("'h' format requires -32768 <= number <= 32767")

        return too_long

    monkeypatch.setattr(api_table, "response_encoder", response_encoder)
    # In every bucket of the timer wheel.
    monkeypatch.setattr(log_maintenance, "_FLUSH_CHECK_MS", 8)
    settings = {
        "group.initial.rebalance.delay.ms": "300", "offsets.topic.num.partitions": "1",
        "log.flush.offset.checkpoint.interval.ms": "10",
    }  # fmt: skip
    checkpoint = tmp_path / "recovery-point-offset-checkpoint"
    with ottla.Broker(str(tmp_path), config=settings) as broker, Peer(broker.address) as witness:
        witness.create("w")
        while (
            witness.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"])
            .coordinators[0]
            .error_code.value
        ):
            time.sleep(0.01)
        members = [Peer(broker.address) for _ in range(GROUPS)]
        for number, member in enumerate(members):
            member.send(
                JOIN_GROUP, 5, group_id=f"g{number}", session_timeout=10_000, rebalance_timeout=10_000, member_id="",
                group_instance_id=f"i{number}", protocol_type="consumer", protocols=[{"name": "p", "metadata": b""}],
            )  # fmt: skip
        for member in members:
            with member:
                assert member.is_closed(), "its client would wait for ever"
        end = witness.produce("w", b"value") + 1
        deadline = time.monotonic() + PATIENCE_S
        while f"w 0 {end}\n" not in (checkpoint.read_text(encoding="ascii") if checkpoint.exists() else ""):
            assert time.monotonic() < deadline, "the recovery point does not move any more"
            time.sleep(0.01)
