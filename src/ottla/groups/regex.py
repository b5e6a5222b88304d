"""Patterns of topic names that members subscribe to (KIP-848): RE2's syntax, as on Kafka, and RE2's promise of linear time.

A pattern comes from a stranger. Backtracking engines can be made to run for years; RE2 takes time that grows with the size of
the compiled pattern and the length of the name, so both are bounded: the pattern here, names by the protocol. A pattern matches whole names.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import re2

PATTERN_LENGTH_MAX: Final = 2_000
#: In RE2's instructions. The largest can take ten milliseconds for the longest name, an ordinary one a thousandth of that.
PROGRAM_SIZE_MAX: Final = 5_000
_MEMORY_BYTES: Final = 4 * 1024 * 1024


class BadPattern(ValueError):
    """No pattern, or one that is too large."""


@lru_cache(maxsize=64)
def compiled(pattern: str) -> Any:
    """The pattern, ready to match. Raises BadPattern."""
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
