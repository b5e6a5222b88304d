r"""Configuration texts as names and values: Kafka's .properties format, or TOML.

Takes text, since reading files is `server`'s and `cli`'s business. Values stay text: `broker` parses them.

A .properties line is `name = value`, `name: value` or `name value`; `#` or `!` begins a comment line; a
backslash at the end continues the line; `\t \n \r \f \uXXXX` and an escaped separator mean what they do in
Java. In TOML, tables and dotted keys are joined with dots, so `[log.retention]` / `ms = 1000` is
`log.retention.ms`. Where one name is the beginning of another (`max.connections`, `max.connections.per.ip`),
TOML wants the longer one in quotes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ottla.config.definition import InvalidConfig

ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
BLANKS = " \t\f"


def parse_properties(text: str) -> dict[str, str]:
    """Names and values of a .properties text; the last of equal names wins."""
    return dict(_split(line) for line in _logical_lines(text))


def format_properties(settings: Mapping[str, str]) -> str:
    """A .properties text that `parse_properties` reads as these names and values."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in settings.items())


def _escaped(value: str) -> str:
    text = value.replace("\\", "\\\\")
    for letter, character in ESCAPES.items():
        text = text.replace(character, f"\\{letter}")
    # A leading space would belong to the separator.
    return f"\\{text}" if text.startswith(" ") else text


def parse_toml(text: str) -> dict[str, str]:
    """Names and values of a TOML text."""
    import tomllib  # imported only if it is used

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(
            f"Not valid TOML: {error}. A name that continues another one, "
            'such as "max.connections.per.ip", must be in quotes'
        ) from error
    return dict(_flattened("", document))


def _logical_lines(text: str) -> Iterator[str]:
    pending = ""
    continued = False
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        stripped = line.lstrip(BLANKS)
        if not continued and (not stripped or stripped[0] in "#!"):
            continue
        backslashes = len(stripped) - len(stripped.rstrip("\\"))
        continued = backslashes % 2 == 1
        if continued:
            pending += stripped[:-1]
            continue
        if pending + stripped:
            yield pending + stripped
        pending = ""
    if pending:
        yield pending


def _split(line: str) -> tuple[str, str]:
    """Name and value of a logical line, split at the first unescaped separator."""
    end = 0
    while end < len(line) and line[end] not in "=:" + BLANKS:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(BLANKS)
    # Java keeps trailing spaces of a value. No setting needs them, and they are invisible in an editor.
    return _unescaped(line[:end]), _unescaped(rest).rstrip()


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    parts = []
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char != "\\":
            parts.append(char)
            continue
        escaped = text[at : at + 1]
        at += 1
        if escaped != "u":
            parts.append(ESCAPES.get(escaped, escaped))
            continue
        digits = text[at : at + 4]
        at += 4
        if len(digits) != 4 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
            raise InvalidConfig(f"Not a valid properties text: \\u{digits} must have four hexadecimal digits")
        parts.append(chr(int(digits, 16)))
    return "".join(parts)


def _flattened(prefix: str, node: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for key, value in node.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flattened(f"{name}.", value)
        elif isinstance(value, list):
            yield name, ",".join(_scalar(name, item) for item in value)
        else:
            yield name, _scalar(name, value)


def _scalar(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float, str)):
        return str(value)
    raise InvalidConfig(
        f"Invalid value {value} for configuration {name}: must be text, a number, a boolean or a list"
    )
