"""Numbers in columns: too large values are rejected, where libraries would return infinity."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, Final

#: From here on, rounding to 32 bits gives infinity.
_SINGLE_MAX: Final = 3.4028235677973366e38
#: The maximum digits of a 64-bit integer. Longer numbers are not expanded: 1e999999999 would fill the memory.
_LONG_DIGITS: Final = 19


def double_of(value: Any) -> float:
    """Convert to a double. Raises OverflowError if the result is infinite but the value is not."""
    number = float(value)
    if math.isinf(number) and number != value:
        raise OverflowError(f"{value} is no double")
    return number


def single_of(value: Any) -> float:
    """The same for a 32-bit float; its precision is not checked."""
    number = double_of(value)
    if _SINGLE_MAX <= abs(number) < math.inf:
        raise OverflowError(f"{value} is no float")
    return number


def whole_of(value: Any) -> Any:
    """A float or decimal without a fraction as an int of at most 64 bits; other values unchanged."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Decimal) and value.is_finite():
        if not value:
            return 0
        if value.adjusted() < _LONG_DIGITS and value == value.to_integral_value():
            return int(value)
    return value
