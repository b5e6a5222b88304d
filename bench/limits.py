"""CPU limits by cgroups: three brokers on one small machine, each with a share of a core.

Needs root and a cpu controller of cgroups version 1 or 2. Without one, `CpuLimit` sets `reason` and limits
nothing.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 10_000


class CpuLimit:
    """`with CpuLimit(pids, share): …` limits each process to this share of one core."""

    def __init__(self, pids: Sequence[int], share: float) -> None:
        self._pids = pids
        self._quota_us = int(_PERIOD_US * share)
        self._groups: list[Path] = []
        self.reason: str | None = None

    def __enter__(self) -> Self:
        is_first_version = (_ROOT / "cpu" / "cgroup.procs").exists()
        parent = _ROOT / "cpu" if is_first_version else _ROOT
        try:
            if not is_first_version:
                (_ROOT / "cgroup.subtree_control").write_text("+cpu")
            for pid in self._pids:
                group = parent / f"bench-{os.getpid()}-{pid}"
                group.mkdir()
                self._groups.append(group)
                if is_first_version:
                    (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                    (group / "cpu.cfs_quota_us").write_text(str(self._quota_us))
                else:
                    (group / "cpu.max").write_text(f"{self._quota_us} {_PERIOD_US}")
                (group / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            self.reason = str(error)
        return self

    def __exit__(self, *exception: object) -> None:
        for group in self._groups:
            for pid in group.joinpath("cgroup.procs").read_text().split():
                with suppress(OSError):
                    (group.parent / "cgroup.procs").write_text(pid)
            with suppress(OSError):
                group.rmdir()
