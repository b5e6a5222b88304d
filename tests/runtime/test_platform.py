"""Calls to the operating system and the C library."""

import subprocess
import sys

import pytest

from ottla.runtime.platform import resident_bytes

_THREAD_USES_MEMORY = """
import threading
from ottla.runtime.platform import resident_bytes, trim_memory, use_one_heap

use_one_heap()
# glibc keeps twice as much as the largest block that was freed so far.
del (large := [bytearray(b"x") * 30_000_000])[:]

def work():
    blocks = [bytearray(b"x") * 100_000 for _ in range(400)]

before = resident_bytes()
thread = threading.Thread(target=work)
thread.start()
thread.join()
trim_memory()
print(resident_bytes() - before)
"""


@pytest.mark.skipif(not resident_bytes(), reason="the memory of a process is known on Linux alone")
def test_memory_that_a_thread_freed_is_given_back() -> None:
    """A separate heap of the thread would keep 40 MB."""
    done = subprocess.run(
        [sys.executable, "-c", _THREAD_USES_MEMORY], stdout=subprocess.PIPE, check=True, text=True
    )

    assert int(done.stdout) < 8_000_000
