"""The start of partitions without a position: `auto_offset_reset` as a timestamp of ListOffsets.

`earliest`, `latest`, `none`, or `by_duration:` with an ISO 8601 duration (KIP-1106): `by_duration:PT1H`
starts at the records of the last hour.
"""

from __future__ import annotations

import re
from typing import Final

from ottla.client.errors import SettingError
from ottla.client.offsets import EARLIEST, LATEST

NAMED: Final[dict[str, int | None]] = {"earliest": EARLIEST, "latest": LATEST, "none": None}
BY_DURATION: Final = "by_duration:"

_DURATION: Final = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_SECONDS: Final = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}


def reset_timestamp(policy: str, now_ms: int) -> int | None:
    """The timestamp to look up; None for `none`. `now_ms` is in ms since 1970. A wrong policy raises
    SettingError.
    """
    text = str(policy)
    if text in NAMED:
        return NAMED[text]
    if text.startswith(BY_DURATION):
        found = _DURATION.fullmatch(text.removeprefix(BY_DURATION))
        parts = {} if found is None else {name: part for name, part in found.groupdict().items() if part}
        if parts:
            return now_ms - round(sum(float(part) * _SECONDS[name] * 1000 for name, part in parts.items()))
    raise SettingError(
        f"auto_offset_reset must be one of {', '.join(NAMED)}, "
        f"or by_duration: with a duration such as PT1H or P7D, not {policy!r}"
    )
