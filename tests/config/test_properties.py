from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.config.broker import BROKER
from ottla.config.definition import InvalidConfig
from ottla.config.properties import format_properties, parse_properties, parse_toml

NAMES = st.text(string.ascii_lowercase + string.digits + "._-", min_size=1, max_size=20)
VALUES = st.text(max_size=30).map(str.strip)


def escaped(text: str) -> str:
    r"""Everything that could mean something to the format, as \uXXXX in UTF-16, the way Java writes it."""
    out = []
    for char in text:
        if char.isascii() and char.isalnum():
            out.append(char)
        else:
            units = char.encode("utf-16-be", "surrogatepass")
            out.extend(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
    return "".join(out)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", {"a": "1"}),
        ("a = 1 ", {"a": "1"}),
        ("a:1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("  a\t=\t1", {"a": "1"}),
        ("a=b=c", {"a": "b=c"}),
        ("a==b", {"a": "=b"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("# a=1\n! b=2\n\n   \nc=3", {"c": "3"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=x,\\\n   y,\\\n   z\nb=1", {"a": "x,y,z", "b": "1"}),
        ("a=x\\\n# not a comment", {"a": "x# not a comment"}),
        ("a=x\\", {"a": "x"}),
        ("a=c:\\\\temp", {"a": "c:\\temp"}),
        ("a=x\\\\\nb=1", {"a": "x\\", "b": "1"}),
        ("a\\=b=1", {"a=b": "1"}),
        ("a\\ b=1", {"a b": "1"}),
        ("a=\\u00e9\\t.", {"a": "é\t."}),
        ("listeners=PLAINTEXT://127.0.0.1:9092", {"listeners": "PLAINTEXT://127.0.0.1:9092"}),
        ("", {}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\u12g4", "a=\\u"])
def test_a_broken_escape_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="four hexadecimal digits"):
        parse_properties(text)


@given(st.dictionaries(NAMES, VALUES))
def test_what_is_escaped_comes_back(settings: dict[str, str]) -> None:
    text = "\n".join(f"{name} = {escaped(value)}" for name, value in settings.items())
    got = parse_properties(text)
    # Characters beyond 16 bits come back as the two halves that Java writes.
    joined = {
        k: v.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass") for k, v in got.items()
    }
    assert joined == settings


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_properties, parse_toml):
        try:
            settings = parse(text)
        except InvalidConfig:
            continue
        assert all(isinstance(text, str) for pair in settings.items() for text in pair)


def test_toml_may_be_flat_dotted_or_nested() -> None:
    text = """
    listeners = ["PLAINTEXT://127.0.0.1:9092", "A://h:1"]
    log.retention.ms = 1000
    "max.connections" = 5
    "max.connections.per.ip" = 3
    auto.create.topics.enable = false
    [log.cleaner]
    min.cleanable.ratio = 0.25
    """
    assert parse_toml(text) == {
        "listeners": "PLAINTEXT://127.0.0.1:9092,A://h:1",
        "log.retention.ms": "1000",
        "max.connections": "5",
        "max.connections.per.ip": "3",
        "auto.create.topics.enable": "false",
        "log.cleaner.min.cleanable.ratio": "0.25",
    }
    assert all(name in BROKER for name in parse_toml(text))


def test_toml_that_is_broken_or_no_setting_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="Not valid TOML"):
        parse_toml("a = ")
    with pytest.raises(InvalidConfig, match="must be in quotes"):
        parse_toml("max.connections = 5\nmax.connections.per.ip = 3")
    with pytest.raises(InvalidConfig, match=r"configuration a\.b: must be text"):
        parse_toml("a.b = 2020-01-01")
    with pytest.raises(InvalidConfig, match="configuration a: must be text"):
        parse_toml("a = [[1]]")


@pytest.mark.parametrize(
    "value",
    [
        "",
        "plain",
        "a=b:c",
        " leading",
        "back\\slash\\",
        "two\nlines\ttabs",
        "#hash!",
        "ünï",
        "\\u0041",
        "x\\",
    ],
)
def test_what_is_written_is_read_back(value: str) -> None:
    settings = {"first": "1", "name.of.it": value, "last": "z"}
    assert parse_properties(format_properties(settings)) == settings
