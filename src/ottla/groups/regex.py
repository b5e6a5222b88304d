"""Patterns of topic names in subscriptions (KIP-848): RE2 syntax as in Kafka, and linear time.

Patterns come from clients. Backtracking engines can be made to run for years. The time of RE2 grows with the
size of the compiled pattern and the length of the name. Both are bounded: the pattern here, names by the
protocol. A pattern matches whole names.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import re2

PATTERN_LENGTH_MAX: Final = 2_000
#: In RE2 instructions. The largest program takes up to 10 ms for the longest name, an ordinary one 10 µs.
PROGRAM_SIZE_MAX: Final = 5_000
_MEMORY_BYTES: Final = 4 * 1024 * 1024


class BadPattern(ValueError):
    """Not a valid pattern, or a too large one."""


@lru_cache(maxsize=64)
def compiled(pattern: str) -> Any:
    """The compiled pattern. Raises BadPattern."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise BadPattern(f"the pattern has {len(pattern)} characters, more than {PATTERN_LENGTH_MAX}")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY_BYTES
    options.never_capture = True
    try:
        program = re2.compile(pattern, options)
    except (re2.error, UnicodeError) as error:
        reason = error.args[0] if error.args else error
        raise BadPattern(
            reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        ) from None
    if program.programsize > PROGRAM_SIZE_MAX:
        raise BadPattern(f"the pattern compiles to {program.programsize} steps, more than {PROGRAM_SIZE_MAX}")
    return program
