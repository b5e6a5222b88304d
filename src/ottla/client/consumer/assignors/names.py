"""Assignors by their names in `partition_assignment_strategy`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from ottla.client.consumer.assignors.assignor import Assignor
from ottla.client.consumer.assignors.dealt import RangeAssignor, RoundRobinAssignor
from ottla.client.consumer.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from ottla.client.errors import SettingError

ASSIGNORS: Final[dict[str, Assignor]] = {
    assignor.name: assignor
    for assignor in (RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor())
}
Strategy: TypeAlias = str | Assignor


def assignors_of(given: Strategy | Sequence[Strategy]) -> tuple[Assignor, ...]:
    """The assignors of the setting, in order of preference."""
    alone = isinstance(given, str) or not isinstance(given, Sequence)
    wanted: list[Strategy] = [given] if alone else list(given)  # type: ignore[list-item,arg-type]  # narrowed by `alone`
    found: list[Assignor] = []
    for each in wanted:
        assignor = ASSIGNORS.get(each) if isinstance(each, str) else each
        if assignor is None:
            raise SettingError(
                f"partition_assignment_strategy must be one of {', '.join(ASSIGNORS)} or an Assignor, "
                f"not {each!r}"
            )
        if not all(hasattr(assignor, name) for name in ("name", "cooperative", "assign", "user_data")):
            raise SettingError(
                f"partition_assignment_strategy: {each!r} is not an Assignor: derive it from ottla.Assignor"
            )
        found.append(assignor)
    if not found or len({each.name for each in found}) < len(found):
        raise SettingError("partition_assignment_strategy needs at least one assignor, and none twice")
    return tuple(found)


def is_cooperative(assignors: Sequence[Assignor]) -> bool:
    """Whether members keep partitions in a rebalance: only if all possible assignors are cooperative
    (KIP-429).
    """
    return all(assignor.cooperative for assignor in assignors)
