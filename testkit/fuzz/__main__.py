"""`python -m testkit.fuzz [all|core|costs|sockets|files|replay]`, which is `make fuzz`.

- `all`, the default: sends `--requests` mutated and shaped requests, one twentieth over sockets and the rest
  into the core, and damages a directory for every hundred requests. It prints the seed, then counts, the
  longest wait of the witness and the growth of memory. A failure prints the command that repeats it.
- `costs`: fills every array of every API up to `--bytes-max`, and measures the CPU time.
- `replay`: sends requests in hex to a new core, one after another.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom
from typing import Final

from testkit.fuzz.core import SHAPES as CORE_SHAPES
from testkit.fuzz.core import Attacker, Round, run_core, run_costs, run_round
from testkit.fuzz.files import run_files
from testkit.fuzz.outcome import Failed, megabytes, resident_bytes
from testkit.fuzz.shapes import BYTES_MAX
from testkit.fuzz.sockets import SHAPES as SOCKET_SHAPES
from testkit.fuzz.sockets import run_sockets

#: Size of the requests in which every array of every API is filled.
_COSTS_BYTES: Final = 200_000
#: For this process and each of its children.
_MEMORY_BYTES_MAX: Final = 8 << 30
_MEMORY = Path("/dev/shm")


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary directory, in memory if possible: thousands of small files are created in it."""
    with tempfile.TemporaryDirectory(prefix="ottla-fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None) as made:
        yield Path(made)


def tell(text: str) -> None:
    print(text, flush=True)


def core(count: int, seed: int, shapes: float, bytes_max: int, jobs: int, *, keep_going: bool) -> None:
    before = resident_bytes()
    talk = tell if count > 50_000 or keep_going else lambda _text: None
    tally = run_core(
        count, seed, shapes=shapes, bytes_max=bytes_max, jobs=jobs, keep_going=keep_going, tell=talk
    )
    peak = megabytes(resident_bytes(what="VmHWM"))
    tell(
        f"core: {tally}; memory {megabytes(before)} before, {megabytes(resident_bytes())} after, peak {peak}"
    )


def sockets(count: int, seed: int, shapes: float, bytes_max: int, *, bounded: bool) -> None:
    with scratch() as directory:
        report = run_sockets(
            count, seed, directory / "data", shapes=shapes, bytes_max=bytes_max, bounded=bounded, tell=tell
        )
    if not bounded:
        tell(f"sockets: {report}")


def files(count: int, seed: int, jobs: int, first: int = 0) -> None:
    with scratch() as directory:
        tell(f"files: {run_files(count, seed, directory, first=first, jobs=jobs, tell=tell)}")


def replay(frames: Sequence[str]) -> None:
    """Send these requests, without their size field, to a core with the usual topics."""
    fresh = Round("replay", {})
    for text in frames:
        attacker = Attacker(fresh)
        frame = bytes.fromhex(text)
        attacker.expected.ask(frame)
        fresh.receive(attacker.client, frame)
    tell(f"replayed: {str(fresh.tally) or 'no answer'}")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m testkit.fuzz", description="Mutated requests and files.")
    parser.add_argument(
        "what", nargs="?", default="all", choices=("all", "core", "costs", "sockets", "files", "replay")
    )
    parser.add_argument("frames", nargs="*", help="for replay: requests in hex")
    parser.add_argument(
        "--requests", "-n", type=int, default=1_000_000, help="how many requests (or damaged directories)"
    )
    parser.add_argument("--seed", type=int, help="of an earlier run, to repeat it")
    parser.add_argument("--round", type=int, help="this round of core, or this directory of files, alone")
    parser.add_argument(
        "--shapes", type=float, help="the share of requests with a shape instead of mutated bytes"
    )
    parser.add_argument("--bytes-max", type=int, default=BYTES_MAX, help="the largest request with a shape")
    parser.add_argument(
        "--jobs",
        type=int,
        help="processes for the core (all processors; 1 with --round)",
        default=os.cpu_count() or 1,
    )
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="report every kind of request that holds the loop too long, and do not bound the witness's wait",
    )
    options = parser.parse_args(arguments)
    in_core = CORE_SHAPES if options.shapes is None else options.shapes
    over = SOCKET_SHAPES if options.shapes is None else options.shapes
    bytes_max: int = options.bytes_max
    keep_going: bool = options.keep_going
    seed: int = SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    count: int = options.requests
    tell(f"seed {seed} (--seed {seed} repeats it)")
    started = time.monotonic()
    try:
        if options.what == "replay":
            replay(options.frames)
        elif options.what == "core" and options.round is not None:
            tell(f"core: {run_round(seed, options.round, count, in_core, bytes_max)}")
        elif options.what == "core":
            core(count, seed, in_core, bytes_max, options.jobs, keep_going=keep_going)
        elif options.what == "costs":
            tell(f"costs: {run_costs(bytes_max, seed, options.jobs, tell)}")
        elif options.what == "sockets":
            sockets(count, seed, over, bytes_max, bounded=not keep_going)
        elif options.what == "files":
            files(count, seed, options.jobs, options.round or 0)
        else:
            over_sockets = count // 20
            # Nothing else runs at the same time, because the waits of the witness are measured.
            sockets(over_sockets, seed, over, bytes_max, bounded=not keep_going)
            if not keep_going:
                tell(f"costs: {run_costs(_COSTS_BYTES, seed, options.jobs, tell)}")
            core(count - over_sockets, seed, in_core, bytes_max, options.jobs, keep_going=keep_going)
            files(max(1, count // 100), seed, options.jobs)
            tell(f"{count:,} requests in {time.monotonic() - started:.0f} s, seed {seed}: all is well")
    except Failed as error:
        tell(f"FAILED, seed {seed}: {error}")
        return 1
    return 0


def _bound_memory() -> None:
    """A request that allocates all memory must fail here, with its name, and not take the machine down."""
    import resource

    _soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = _MEMORY_BYTES_MAX if hard == resource.RLIM_INFINITY else min(hard, _MEMORY_BYTES_MAX)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))


if __name__ == "__main__":
    _bound_memory()
    sys.exit(main(sys.argv[1:]))
