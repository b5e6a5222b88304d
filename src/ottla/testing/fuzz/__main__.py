"""`python -m ottla.testing.fuzz [all|core|sockets|files|replay]`, which is `make fuzz`.

`all` (the default) makes so many mutated requests, nine tenths into the core and one tenth over sockets, and damages a directory
for every hundred of them. It prints the seed first, then counts and memory; a failure ends with a line that repeats it. `replay`
takes requests in hex and sends them to a fresh core, one after another.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom

from ottla.testing.fuzz.core import Attacker, Round, run_core, run_round
from ottla.testing.fuzz.files import run_files
from ottla.testing.fuzz.outcome import Failed, megabytes, resident_bytes
from ottla.testing.fuzz.sockets import Report, run_sockets

_MEMORY = Path("/dev/shm")  # noqa: S108  (a directory of its own is made in it, by tempfile)


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory that goes again, in memory if the system offers that: thousands of small files are made in it."""
    with tempfile.TemporaryDirectory(prefix="ottla-fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None) as made:
        yield Path(made)


def tell(text: str) -> None:
    print(text, flush=True)


def core(count: int, seed: int) -> None:
    before = resident_bytes()
    tally = run_core(count, seed, tell=tell if count > 50_000 else lambda _text: None)
    peak = megabytes(resident_bytes(what="VmHWM"))
    tell(
        f"core: {tally}; memory {megabytes(before)} before, {megabytes(resident_bytes())} after, peak {peak}"
    )


def sockets(count: int, seed: int) -> Report:
    with scratch() as directory:
        report = run_sockets(
            count, seed, directory / "data", tell=tell if count > 10_000 else lambda _text: None
        )
    tell(
        f"sockets: {report.tally}; {report.witnessed:,} records of the witness, the longest in "
        f"{report.witness_longest_s * 1000:.0f} ms; memory {megabytes(report.before_bytes)} before, "
        f"{megabytes(report.after_bytes)} after, peak {megabytes(report.peak_bytes)}; "
        f"descriptors {report.descriptors[0]} to {report.descriptors[1]}; {report.said} lines said; "
        f"{report.idle_cpu:.0%} CPU when idle"
    )
    return report


def files(count: int, seed: int, first: int = 0) -> None:
    with scratch() as directory:
        tell(f"files: {run_files(count, seed, directory, first=first, tell=tell)}")


def replay(frames: Sequence[str]) -> None:
    """These requests, without their lengths, into a core with the usual topics."""
    fresh = Round("replay", {})
    for text in frames:
        attacker = Attacker(fresh)
        frame = bytes.fromhex(text)
        attacker.expected.ask(frame)
        fresh.receive(attacker.client, frame)
    tell(f"replayed: {str(fresh.tally) or 'no answer'}")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ottla.testing.fuzz", description="Mutated requests and files."
    )
    parser.add_argument(
        "what", nargs="?", default="all", choices=("all", "core", "sockets", "files", "replay")
    )
    parser.add_argument("frames", nargs="*", help="for replay: requests in hex")
    parser.add_argument(
        "--requests", "-n", type=int, default=1_000_000, help="how many requests (or damaged directories)"
    )
    parser.add_argument("--seed", type=int, help="of an earlier run, to repeat it")
    parser.add_argument("--round", type=int, help="this round of core, or this directory of files, alone")
    options = parser.parse_args(arguments)
    seed: int = SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    count: int = options.requests
    tell(f"seed {seed} (--seed {seed} repeats it)")
    started = time.monotonic()
    try:
        if options.what == "replay":
            replay(options.frames)
        elif options.what == "core" and options.round is not None:
            tell(f"core: {run_round(seed, options.round, count)}")
        elif options.what == "core":
            core(count, seed)
        elif options.what == "sockets":
            sockets(count, seed)
        elif options.what == "files":
            files(count, seed, options.round or 0)
        else:
            over_sockets = count // 10
            core(count - over_sockets, seed)
            sockets(over_sockets, seed)
            files(max(1, count // 100), seed)
            tell(
                f"{count:,} mutated requests in {time.monotonic() - started:.0f} s, seed {seed}: all is well"
            )
    except Failed as error:
        tell(f"FAILED, seed {seed}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
