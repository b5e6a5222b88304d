"""Numbers as columns hold them: what is too large is refused, where Python and the formats' own libraries would make it infinite."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, Final

#: From here on, rounding to 32 bits gives infinity.
_SINGLE_MAX: Final = 3.4028235677973366e38
#: As many digits as a whole number of 64 bits has at most: more are not even counted out, since 1e999999999 would fill the memory.
_LONG_DIGITS: Final = 19


def double_of(value: Any) -> float:
    """A number as a double. Raises OverflowError where only infinity is as large, unless the value is infinite itself."""
    number = float(value)
    if math.isinf(number) and number != value:
        raise OverflowError(f"{value} is no double")
    return number


def single_of(value: Any) -> float:
    """The same for a float of 32 bits; its precision is not looked at."""
    number = double_of(value)
    if _SINGLE_MAX <= abs(number) < math.inf:
        raise OverflowError(f"{value} is no float")
    return number


def whole_of(value: Any) -> Any:
    """A float or decimal without a fraction as an int, of 64 bits at most; everything else as it is."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Decimal) and value.is_finite():
        if not value:
            return 0
        if value.adjusted() < _LONG_DIGITS and value == value.to_integral_value():
            return int(value)
    return value
