import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.log import names

UNIQUE = bytes(range(16))


def test_a_segments_files_have_twenty_digits() -> None:
    assert names.offset_name(0) == "00000000000000000000"
    assert names.offset_name(2**63 - 1) == "09223372036854775807"
    assert names.segment_base("00000000000000000042.log") == 42
    assert names.snapshot_offset("00000000000000000042.snapshot") == 42


@pytest.mark.parametrize(
    "name", ["42.log", "00000000000000000042.index", "00000000000000000042.log.deleted", "0000000000000000004x.log",
             "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٤٢.log"],
)  # fmt: skip
def test_other_names_are_no_segments(name: str) -> None:
    assert names.segment_base(name) is None


@given(st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True), st.integers(0, 10**6))
def test_a_partitions_directory_says_which_it_is(topic: str, partition: int) -> None:
    assert names.parse_partition_dir(names.partition_dir(topic, partition)) == (topic, partition)


@pytest.mark.parametrize(
    "name", ["meta.properties", "orders", "orders-", "-3", "orders-x", ".lock", "orders-3-"]
)
def test_other_names_are_no_partitions(name: str) -> None:
    assert names.parse_partition_dir(name) is None


@pytest.mark.parametrize("topic", ["orders", "o" * 249])
def test_a_partition_on_its_way_out_is_no_partition(topic: str) -> None:
    name = names.delete_dir(topic, 12, UNIQUE)
    assert len(name) <= 255
    assert name.endswith("-12.000102030405060708090a0b0c0d0e0f-delete")
    assert names.is_delete_dir(name)
    assert names.parse_partition_dir(name) is None
    assert not names.is_delete_dir("orders-delete")


def test_ids_are_url_safe_base64_without_padding() -> None:
    assert names.id_text(UNIQUE) == "AAECAwQFBgcICQoLDA0ODw"
    assert names.parse_id("AAECAwQFBgcICQoLDA0ODw") == UNIQUE
