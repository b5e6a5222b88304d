import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.log.names import KAFKA_METADATA
from ottla.metadata import kraft, kraft_log
from ottla.metadata.kraft_log import DamagedMetadata, KraftState
from ottla.records.record import Record, encode_batch
from ottla.runtime.disk import SystemDisk
from tests.kafka_fixture import SERIES, kafka_directory

TOPIC_ID = bytes(range(16))
#: Frame 1, kind 2 (Topic), version 0, "t", its id, no tagged field.
TOPIC = b"\1\2\0" + b"\2t" + TOPIC_ID + b"\0"
#: Frame 1, kind 3, version 0: partition 7 of it, replicas 1 and 2, isr 1, none removed or added, leader 1, epochs 5 and 6.
PARTITION = (
    b"\1\3\0" + struct.pack(">i", 7) + TOPIC_ID + b"\3" + struct.pack(">ii", 1, 2) + b"\2" + struct.pack(">i", 1)
    + b"\1\1" + struct.pack(">iii", 1, 5, 6) + b"\0"
)  # fmt: skip
#: Kind 5: its leader is now 2 (tag 1).
CHANGE = b"\1\5\0" + struct.pack(">i", 7) + TOPIC_ID + b"\1\1\4" + struct.pack(">i", 2)
REMOVE = b"\1\x09\0" + TOPIC_ID + b"\0"
BEGIN, END, ABORT = b"\1\x17\0\0", b"\1\x18\0\0", b"\1\x19\0\0"


def state_of(*values: bytes) -> KraftState:
    state = KraftState()
    for value in values:
        state.apply(kraft.decode(value))
    return state


def write(folder: Path, name: str, *batches: bytes) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"".join(batches))


def batch(offset: int, *values: bytes, **options: Any) -> bytes:
    records = [Record(offset, 0, None, value) for value in values]
    return encode_batch(records, base_offset=offset, **options)


def read(folder: Path) -> KraftState:
    state = kraft_log.read(SystemDisk(), str(folder))
    assert state is not None
    return state


LOG = "00000000000000000000.log"


def test_fields_tagged_fields_and_changes() -> None:
    assert kraft.decode(TOPIC) == ("Topic", 0, {"name": "t", "topic_id": TOPIC_ID})
    partition = kraft.decode(PARTITION).fields
    assert (partition["partition_id"], partition["replicas"], partition["leader_epoch"]) == (7, [1, 2], 5)
    assert kraft.decode(CHANGE).fields == {"partition_id": 7, "topic_id": TOPIC_ID, "leader": 2}
    found = state_of(TOPIC, PARTITION, CHANGE).partitions[TOPIC_ID][7]
    assert (found.leader, found.leader_epoch, found.partition_epoch, found.replicas) == (2, 6, 7, [1, 2])
    assert state_of(TOPIC, PARTITION, REMOVE).names == {}


def test_a_transaction_counts_as_a_whole_or_not_at_all() -> None:
    assert state_of(BEGIN, TOPIC, PARTITION, END).names == {TOPIC_ID: "t"}
    assert state_of(BEGIN, TOPIC, ABORT).names == {}
    assert state_of(BEGIN, TOPIC).names == {}


def test_what_is_from_the_future_is_not_guessed_at() -> None:
    with pytest.raises(kraft.UnknownKind):
        kraft.decode(b"\1\x7f\0\0")
    with pytest.raises(kraft.Malformed, match="version 9"):
        kraft.decode(b"\1\2\x09" + TOPIC[3:])
    with pytest.raises(kraft.Malformed, match="frame version 2"):
        kraft.decode(b"\2" + TOPIC[1:])
    # A tagged field that is not known is passed over.
    assert kraft.decode(TOPIC[:-1] + b"\1\x63\2xy").fields["name"] == "t"


@given(st.binary(max_size=80), st.sampled_from((TOPIC, PARTITION, CHANGE)), st.integers(0, 60))
def test_no_bytes_do_worse_than_malformed(noise: bytes, value: bytes, at: int) -> None:
    for data in (noise, b"\1" + noise, value[:at] + noise, value[:at]):
        with suppress(kraft.Malformed):
            kraft.decode(data)


def test_secrets_are_not_shown() -> None:
    record = kraft.MetadataRecord(
        "UserScramCredential", 0, {"name": "u", "salt": b"abc", "stored_key": b"xyz"}
    )
    assert kraft.shown(record) == {"name": "u", "salt": "(3 secret bytes)", "stored_key": "(3 secret bytes)"}
    password = {"name": "ssl.keystore.password", "value": "hunter2", "resource_type": 4, "resource_name": ""}
    assert "hunter2" not in str(kraft.shown(kraft.MetadataRecord("Config", 0, password)))


@pytest.mark.parametrize("series", SERIES)
def test_what_kafka_wrote(tmp_path: Path, series: str) -> None:
    state = read(kafka_directory(series, tmp_path) / KAFKA_METADATA)
    partitions = {name: len(state.partitions[topic_id]) for topic_id, name in state.names.items()}
    assert partitions == {"orders": 2, "trimmed": 1}
    assert state.configs[2, "orders"] == {"cleanup.policy": "compact"}
    assert state.configs[2, "trimmed"] == {"retention.ms": "123456"}
    assert state.configs[4, "1"] == {"log.retention.ms": "987654321"}
    assert (state.next_producer_id, state.voters, state.left_out, state.torn_bytes) == (1000, {1}, {}, 0)
    assert state.end == kraft_log.end_offset(SystemDisk(), str(tmp_path / "data" / KAFKA_METADATA)) > 20


def test_a_torn_tail_is_left_out_and_damage_before_the_end_refused(tmp_path: Path) -> None:
    good, more = batch(0, TOPIC), batch(1, PARTITION)
    write(tmp_path / "m", LOG, good, more[:-3])
    state = read(tmp_path / "m")
    assert (state.end, state.torn_bytes, state.partitions) == (1, len(more) - 3, {TOPIC_ID: {}})
    bad = bytearray(good)
    bad[-2] ^= 1
    write(tmp_path / "m", LOG, bytes(bad), more)
    with pytest.raises(DamagedMetadata, match="damaged at byte 0"):
        read(tmp_path / "m")
    write(tmp_path / "m", LOG, good, batch(3, PARTITION))
    with pytest.raises(DamagedMetadata, match="offsets 1 to 2 are missing"):
        read(tmp_path / "m")


def control(offset: int, kind: int, value: bytes) -> bytes:
    record = Record(offset, 0, struct.pack(">hh", 0, kind), value)
    return encode_batch([record], base_offset=offset, control=True)


def test_a_snapshot_and_the_log_after_it(tmp_path: Path) -> None:
    header, footer = control(0, 3, bytes(11)), control(2, 4, bytes(3))
    whole = (header, batch(1, TOPIC), footer)
    write(tmp_path / "m", "00000000000000000010-0000000001.checkpoint", *whole)
    write(tmp_path / "m", "00000000000000000010.log", batch(10, PARTITION))
    # A newer one without its end does not count.
    write(tmp_path / "m", "00000000000000000011-0000000001.checkpoint", *whole[:-1])
    state = read(tmp_path / "m")
    assert (state.end, list(state.partitions[TOPIC_ID])) == (11, [7])
    (tmp_path / "m" / "00000000000000000010-0000000001.checkpoint").unlink()
    with pytest.raises(DamagedMetadata, match="begins at offset 10"):
        read(tmp_path / "m")


def test_an_unknown_kind_is_counted_and_no_more(tmp_path: Path) -> None:
    write(
        tmp_path / "m", LOG, batch(0, TOPIC, b"\1\x7f\0\0", b"\1\x12\0" + TOPIC_ID + b"\2\2t\3\2u\2*\2\3\0")
    )
    assert read(tmp_path / "m").left_out == {"unknown kind 127": 1, "AccessControlEntry": 1}
