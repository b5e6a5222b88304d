from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.config.broker import BROKER
from ottla.config.definition import Definition, InvalidConfig, unknown_name
from ottla.config.topic import TOPIC
from ottla.model.errors import ErrorCode, Refusal

ROWS = [*TOPIC.values(), *BROKER.values()]

RETENTION = TOPIC["retention.ms"]
POLICY = TOPIC["cleanup.policy"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_default_is_a_value_of_its_setting_in_canonical_spelling(row: Definition) -> None:
    if row.default is not None:
        assert row.canonical(row.default) == row.default


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_setting_is_documented_and_says_what_it_accepts(row: Definition) -> None:
    assert row.doc.endswith(".")
    assert row.accepts
    if row.name.endswith(".ms"):
        assert row.unit == "ms"


@pytest.mark.parametrize(
    "row", [r for r in ROWS if r.type not in ("string", "list", "password")], ids=lambda r: r.name
)
def test_what_is_no_number_and_no_boolean_is_refused(row: Definition) -> None:
    for text in ("", " ", "abc", "1x", "0x10", "--1", "1_0", "١", "nan", "inf", "9" * 5000):
        with pytest.raises(InvalidConfig) as refused:
            row.parse(text)
        assert refused.value.code == ErrorCode.INVALID_CONFIG
        assert row.name in str(refused.value)
        assert row.accepts in str(refused.value)
        assert len(str(refused.value)) < 500


def test_a_refusal_names_the_setting_the_value_and_what_is_accepted() -> None:
    with pytest.raises(Refusal) as refused:
        RETENTION.parse("abc")
    assert refused.value.message == (
        "Invalid value abc for configuration retention.ms: must be an integer ≥ -1 that fits in 64 bits"
    )
    with pytest.raises(
        InvalidConfig, match=r"compression\.type: must be one of uncompressed, zstd, lz4, snappy"
    ):
        TOPIC["compression.type"].parse("brotli")
    with pytest.raises(InvalidConfig, match="must be a comma-separated list of compact, delete"):
        POLICY.parse("shrink")
    with pytest.raises(InvalidConfig, match="from -1 to 9"):
        TOPIC["compression.gzip.level"].parse("10")
    with pytest.raises(InvalidConfig, match="from 0 to 1"):
        TOPIC["min.cleanable.dirty.ratio"].parse("1.5")
    with pytest.raises(InvalidConfig, match="Null value"):
        RETENTION.parse(None)


def test_ranges_end_where_they_say() -> None:
    assert RETENTION.parse("-1") == -1
    assert RETENTION.parse(str(2**63 - 1)) == 2**63 - 1
    assert TOPIC["segment.bytes"].parse(str(2**31 - 1)) == 2**31 - 1
    for row, text in [(RETENTION, "-2"), (RETENTION, str(2**63)), (TOPIC["segment.bytes"], str(2**31))]:
        with pytest.raises(InvalidConfig):
            row.parse(text)


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("FALSE", False), (" True ", True), ("fAlse", False)]
)
def test_booleans_in_any_case(text: str, value: bool) -> None:
    assert TOPIC["preallocate"].parse(text) is value


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("delete", ("delete",)),
        ("compact, delete", ("compact", "delete")),
        ("delete,delete", ("delete",)),
        ("", ()),
    ],
)
def test_lists_are_split_and_stripped(text: str, items: tuple[str, ...]) -> None:
    assert POLICY.parse(text) == items


@pytest.mark.parametrize("text", ["delete,", ",", "delete,,compact", "Delete"])
def test_lists_with_holes_or_strangers_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfig):
        POLICY.parse(text)


@pytest.mark.parametrize("text", ["*", "", "0:1", "0:1,12:3"])
def test_throttled_replicas_take_pairs_or_a_star(text: str) -> None:
    assert TOPIC["leader.replication.throttled.replicas"].canonical(text) == text


@pytest.mark.parametrize("text", ["1", "a:b", "*,0:1", "0:1:2", ":", "0:"])
def test_throttled_replicas_take_nothing_else(text: str) -> None:
    with pytest.raises(InvalidConfig, match="PARTITION:BROKER"):
        TOPIC["leader.replication.throttled.replicas"].parse(text)


@given(st.integers(-(2**63), 2**63 - 1))
def test_an_integer_is_taken_exactly_when_it_is_in_range(number: int) -> None:
    if number >= -1:
        assert RETENTION.parse(str(number)) == number
        assert RETENTION.format(RETENTION.parse(f" +{number} " if number >= 0 else str(number))) == str(
            number
        )
    else:
        with pytest.raises(InvalidConfig):
            RETENTION.parse(str(number))


@given(row=st.sampled_from(ROWS), text=st.text(max_size=60))
def test_any_text_is_parsed_or_refused_and_a_parsed_one_has_a_fixed_spelling(
    row: Definition, text: str
) -> None:
    try:
        value = row.parse(text)
    except InvalidConfig:
        return
    assert row.parse(row.format(value)) == value


@given(st.floats(0, 1))
def test_ratios_keep_their_value(ratio: float) -> None:
    row = TOPIC["min.cleanable.dirty.ratio"]
    assert row.parse(row.format(ratio)) == ratio


def test_an_unknown_name_comes_with_the_nearest_known_one() -> None:
    assert str(unknown_name("topic", "retention.m", TOPIC)) == (
        "Unknown topic config name: retention.m (did you mean retention.ms?)"
    )
    assert str(unknown_name("topic", "zzzz", TOPIC)) == "Unknown topic config name: zzzz"
    assert len(str(unknown_name("topic", "r" * 100_000, TOPIC))) < 300
