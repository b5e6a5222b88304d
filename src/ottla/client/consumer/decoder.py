"""The record decoder of a consumer: pure Python at first, compiled code when there is enough to read.

numba takes half a second to load (and a second more to compile, once per machine). A consumer of a few
thousand records would not earn that back. So the pure decoder opens the first `AUTO_RECORDS` of each
consumer. Then a thread loads the compiled one, while the pure one continues. It is loaded once per process.
Without numba, or if numba fails, the pure decoder stays in use; a failure is logged once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Final, Literal, Protocol, cast

from ottla.client.errors import SettingError
from ottla.records import pieces
from ottla.records.compression import Buffer
from ottla.records.packed import Packed, Part
from ottla.records.pieces import Piece, Rows

RecordDecoder = Literal["auto", "pure", "compiled"]
RECORD_DECODERS: Final[tuple[RecordDecoder, ...]] = ("auto", "pure", "compiled")

AUTO_RECORDS: Final = 100_000

_log = logging.getLogger("ottla.client")


class Twin(Protocol):
    """The interface of `records/pieces.py` and `records/compiled.py`."""

    def open_rows(self, batch: Buffer, *, check_crc: bool = True) -> Rows: ...

    def piece(self, batch: Buffer, *, check_crc: bool = True) -> Piece: ...

    def pack(self, parts: Sequence[Part]) -> Packed: ...


class _Loader:
    """The compiled decoder of this process, loaded at most once."""

    def __init__(self) -> None:
        self.twin: Twin | None = None
        #: Whether the compiled decoder is known to be unavailable.
        self.is_unavailable = False
        self._lock = threading.Lock()
        self._tried = False
        self._thread: threading.Thread | None = None

    def load(self) -> Twin | None:
        """The compiled decoder, or None if it is unavailable."""
        with self._lock:
            if not self._tried:
                self._tried = True
                try:
                    self.twin = cast(Twin, import_module("ottla.records.compiled"))
                except Exception as error:
                    self.is_unavailable = True
                    if find_spec("numba") is not None:
                        _log.warning("numba cannot be used (%s): records are decoded in pure Python", error)
            return self.twin

    def load_soon(self) -> None:
        """Load it in a thread. The interpreter waits for the thread at exit, because an interrupted compiler
        may crash.
        """
        if self._tried or self._thread is not None:
            return
        if find_spec("numba") is None:
            self.is_unavailable = True
            return
        self._thread = threading.Thread(target=self.load, name="ottla-compile")
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter is ending, or no thread can be started
            self._thread = None


_loader = _Loader()


class DecoderSelector:
    """One consumer's decoder. Read `twin` for every batch: it changes when the compiled decoder is loaded."""

    def __init__(self, wanted: RecordDecoder = "auto") -> None:
        self.twin: Twin = pieces
        self._until_load = AUTO_RECORDS
        self._settled = wanted == "pure"
        if wanted == "compiled":
            compiled = _loader.load()
            if compiled is None:
                raise SettingError(
                    "record_decoder='compiled' needs numba: install ottla[fast], or leave it at 'auto'"
                )
            self._adopt(compiled)
        elif wanted == "auto" and _loader.twin is not None:
            self._adopt(_loader.twin)

    def read(self, records: int) -> None:
        """Count records that were read: load the compiled decoder after enough of them, and switch to it when
        it is loaded.
        """
        if self._settled:
            return
        self._until_load -= records
        if self._until_load > 0:
            return
        if _loader.twin is not None:
            self._adopt(_loader.twin)
        elif _loader.is_unavailable:
            self._settled = True
        else:
            _loader.load_soon()

    def _adopt(self, twin: Twin) -> None:
        self.twin = twin
        self._settled = True
