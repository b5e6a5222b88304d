"""The definition of one setting: name, type, accepted values, and the error for any other value.

A `Definition` is created at import and never changes. `parse` turns text into a typed value or raises
`InvalidConfig`. Its message has the setting, the value and the accepted values, and reaches users of the
admin APIs and the command line unchanged. `format` is the inverse and returns the canonical text.

These are plain classes, because importing `dataclasses` would take most of the time that this package adds to
a start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Never

from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import CONFIG_LIST_BYTES_MAX, CONFIG_VALUE_BYTES_MAX

Value = int | float | bool | str | tuple[str, ...]

READ_ONLY = "read-only"
PER_BROKER = "per-broker"
CLUSTER_WIDE = "cluster-wide"

INTEGER_BITS = {"short": 16, "int": 32, "long": 64}
LONG_MAX = 2**63 - 1

# Longer than any 64-bit number: longer text is refused before it is converted.
NUMBER_CHARS_MAX = 40
# An error message quotes the refused value, shortened to this.
QUOTED_CHARS_MAX = 200
# The search for similar names is quadratic in their length.
SUGGESTED_CHARS_MAX = 120


class InvalidConfig(Refusal):
    """An invalid setting or combination of settings: the protocol's INVALID_CONFIG."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_CONFIG, message)


class Definition:
    """One row of the table. `default` is text, as in a properties file; None means "not set"."""

    __slots__ = (
        "allowed",
        "broker_names",
        "check",
        "default",
        "doc",
        "dynamic",
        "form",
        "maximum",
        "minimum",
        "name",
        "section",
        "type",
        "unit",
    )

    def __init__(
        self,
        name: str,
        kind: str,
        default: str | None,
        doc: str,
        *,
        unit: str = "",
        minimum: float | None = None,
        maximum: float | None = None,
        allowed: tuple[str, ...] = (),
        check: Callable[[Value], bool] | None = None,
        form: str = "",
        dynamic: str = READ_ONLY,
        broker_names: tuple[str, ...] = (),
        section: str = "",
    ) -> None:
        self.name = name
        self.type = (
            kind  # "short", "int", "long", "double", "boolean", "string", "list", "class" or "password"
        )
        self.default = default
        self.doc = doc
        self.unit = unit
        self.minimum = minimum
        self.maximum = maximum
        self.allowed = allowed
        self.check = check  # a condition beyond type, range and allowed values; `form` describes it
        self.form = form
        self.dynamic = dynamic
        self.broker_names = broker_names  # the broker settings that are the default of a topic setting, in order of precedence
        self.section = section

    def __repr__(self) -> str:
        return f"Definition({self.name!r}, {self.type!r}, default={self.default!r})"

    @property
    def broker_name(self) -> str | None:
        """The first broker setting that is the default of this topic setting."""
        return self.broker_names[0] if self.broker_names else None

    @property
    def attribute(self) -> str:
        """The name of the attribute in Python."""
        return self.name.replace(".", "_")

    @property
    def sensitive(self) -> bool:
        """Whether the value is secret."""
        return self.type == "password"

    @property
    def accepts(self) -> str:
        """The accepted values as text, to follow "must be"."""
        if self.form:
            return self.form
        if self.type == "boolean":
            return "true or false"
        if self.allowed:
            listed = ", ".join(self.allowed)
            return f"a comma-separated list of {listed}" if self.type == "list" else f"one of {listed}"
        if self.type == "list":
            return "a comma-separated list"
        if self.type in INTEGER_BITS or self.type == "double":
            return self._range_in_words()
        return "text"

    def _range_in_words(self) -> str:
        noun = "a number" if self.type == "double" else "an integer"
        if self.minimum is not None and self.maximum is not None:
            return f"{noun} from {self.minimum} to {self.maximum}"
        bound = "" if self.minimum is None else f" ≥ {self.minimum}"
        if self.type == "double":
            return noun + bound
        return f"{noun}{bound} that fits in {INTEGER_BITS[self.type]} bits"

    def refuse(self, text: str) -> InvalidConfig:
        """The exception for an invalid value of this setting."""
        quoted = text if len(text) <= QUOTED_CHARS_MAX else text[:QUOTED_CHARS_MAX] + "…"
        if self.sensitive:
            quoted = "[hidden]"
        return InvalidConfig(f"Invalid value {quoted} for configuration {self.name}: must be {self.accepts}")

    def parse(self, text: str | None) -> Value:
        """The typed value of `text`; raises `InvalidConfig`."""
        if text is None:
            raise InvalidConfig(
                f"Null value not supported for configuration {self.name}: must be {self.accepts}"
            )
        self._check_length(text)
        stripped = text.strip()
        value = self._convert(stripped)
        if value is None or (self.check is not None and not self.check(value)):
            raise self.refuse(text)
        return value

    def _check_length(self, text: str) -> None:
        limit = CONFIG_LIST_BYTES_MAX if self.type == "list" else CONFIG_VALUE_BYTES_MAX
        # A character has at most four bytes: most values need no encoding for this check.
        if len(text) * 4 > limit and (size := len(text.encode("utf-8", "surrogatepass"))) > limit:
            raise InvalidConfig(
                f"the value for configuration {self.name} has {size} bytes, at most {limit} are allowed"
            )

    def _convert(self, text: str) -> Value | None:
        kind = self.type
        if kind == "boolean":
            return {"true": True, "false": False}.get(text.lower())
        if kind in INTEGER_BITS:
            return self._in_range(_integer(text, INTEGER_BITS[kind]))
        if kind == "double":
            return self._in_range(_double(text))
        if kind == "list":
            items = tuple(item.strip() for item in text.split(",")) if text else ()
            if "" in items or (self.allowed and not set(items) <= set(self.allowed)):
                return None
            return tuple(dict.fromkeys(items))
        return None if self.allowed and text not in self.allowed else text

    def _in_range(self, number: int | float | None) -> int | float | None:
        if number is None:
            return None
        if self.minimum is not None and number < self.minimum:
            return None
        if self.maximum is not None and number > self.maximum:
            return None
        return number

    def format(self, value: Value) -> str:
        """The canonical text of a parsed value."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)

    def canonical(self, text: str | None) -> str:
        """The canonical spelling of a valid text."""
        return self.format(self.parse(text))


def _integer(text: str, bits: int) -> int | None:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if len(digits) > NUMBER_CHARS_MAX or not (digits.isascii() and digits.isdigit()):
        return None
    number = int(text)
    return number if -(2 ** (bits - 1)) <= number < 2 ** (bits - 1) else None


def _double(text: str) -> float | None:
    # Python's float also accepts underscores, digits of other scripts, "nan" and "inf". No setting does.
    if len(text) > NUMBER_CHARS_MAX or not text.isascii() or "_" in text:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number - number == 0 else None


def table(definitions: Iterable[Definition]) -> dict[str, Definition]:
    """The definitions by name, sorted."""
    return {row.name: row for row in sorted(definitions, key=lambda row: row.name)}


def unknown_name(kind: str, name: str, known: Mapping[str, Definition]) -> InvalidConfig:
    """The exception for an unknown name, with the most similar known name, if there is one."""
    hint = ""
    if len(name) <= SUGGESTED_CHARS_MAX:
        import difflib  # its import costs more than the whole table

        near = difflib.get_close_matches(name, known, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
    quoted = name if len(name) <= QUOTED_CHARS_MAX else name[:QUOTED_CHARS_MAX] + "…"
    return InvalidConfig(f"Unknown {kind} config name: {quoted}{hint}")


class Settings:
    """Resolved settings: one slot each, written once. Subclasses declare their slots by annotation."""

    __slots__: tuple[str, ...] = ()

    def __init__(self, values: Mapping[str, object]) -> None:
        for name in self.__slots__:
            object.__setattr__(self, name, values[name])

    def __setattr__(self, name: str, value: Never) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; resolve a new one to change {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={self._shown(name)}" for name in self.__slots__)
        return f"{type(self).__name__}({shown})"

    def _shown(self, name: str) -> str:
        """A setting as `repr` shows it; subclasses hide passwords."""
        return repr(getattr(self, name))


def number(
    section: str,
    name: str,
    kind: str,
    default: int,
    minimum: int | None,
    doc: str,
    *,
    unit: str = "",
    maximum: int | None = None,
    dynamic: str = READ_ONLY,
) -> Definition:
    """A setting with an integer value."""
    return Definition(
        name,
        kind,
        str(default),
        doc,
        unit=unit,
        minimum=minimum,
        maximum=maximum,
        dynamic=dynamic,
        section=section,
    )
