"""Text formats of keys, values, times and durations.

`produce` reads the formats that `consume` prints.
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime
from typing import Literal

from ottla.cli.outcome import usage_error

Format = Literal["text", "hex", "base64"]

UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def shown(data: bytes | None, form: Format) -> str | None:
    """Bytes for a terminal or JSON. Invalid UTF-8 is shown as \\xNN."""
    if data is None:
        return None
    if form == "hex":
        return data.hex()
    if form == "base64":
        return base64.b64encode(data).decode()
    return data.decode("utf-8", "backslashreplace")


def typed(text: str, form: Format) -> bytes:
    """The bytes of a typed text."""
    try:
        if form == "hex":
            return bytes.fromhex(text)
        if form == "base64":
            return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        raise usage_error(f"{text!r} is not {form}: {error}") from error
    return text.encode("utf-8", "surrogateescape")


def time_ms(text: str, now_ms: int) -> int:
    """A point in time: milliseconds since 1970, an ISO 8601 date, or `-5m` for five minutes ago (ms, s, m, h,
    d).
    """
    if re.fullmatch(r"\d+", text):
        return int(text)
    ago = re.fullmatch(r"-(\d+(?:\.\d+)?)(ms|s|m|h|d)", text)
    if ago:
        return now_ms - round(float(ago[1]) * UNIT_MS[ago[2]])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise usage_error(
            f"{text!r} is not a time: use 2026-01-31T12:00:00Z, milliseconds since 1970, or -5m for five "
            "minutes ago"
        ) from None
    # A date without a zone is local time.
    return round((moment if moment.tzinfo else moment.astimezone()).timestamp() * 1000)


def time_text(timestamp_ms: int) -> str:
    if timestamp_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration_ms(text: str, option: str) -> int:
    """A duration such as `500ms`, `30s`, `15m`, `2h` or `1d`."""
    given = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text)
    if given is None:
        raise usage_error(f"{option} takes a duration such as 500ms, 30s, 15m, 2h or 1d, but got {text!r}")
    return round(float(given[1]) * UNIT_MS[given[2]])


def duration_text(duration_ms: int) -> str:
    """A duration as text, in the largest unit of which it has at least one."""
    if duration_ms < 1000:
        return f"{max(duration_ms, 0)}ms"
    unit = next(unit for unit in ("d", "h", "m", "s") if duration_ms >= UNIT_MS[unit])
    return f"{duration_ms / UNIT_MS[unit]:.3g}{unit}"
