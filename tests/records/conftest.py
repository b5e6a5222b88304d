"""kafka-python calls deprecated functions while it is imported; that is not a warning about ottla."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.partitioner.default
    import kafka.record.default_records  # noqa: F401

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.records import record
from ottla.records.record import Record


@pytest.fixture(scope="session")
def checked() -> Callable[..., Any]:
    """The compiled scan of a batch, with bounds checks on every array: IndexError outside."""
    compiled = pytest.importorskip("ottla.records.compiled", reason="numba is not here")
    *_, walk = compiled.compile_with(boundscheck=True)
    return walk  # type: ignore[no-any-return]


@pytest.fixture(scope="module", params=["pure", "compiled"])
def decode_batch(request: pytest.FixtureRequest) -> Iterator[Callable[..., list[Record]]]:
    """The decoder in both versions; the compiled one decodes even the smallest batch itself, and checks its
    bounds.
    """
    if request.param == "pure":
        yield record.decode_batch
        return
    walk = request.getfixturevalue("checked")
    from ottla.records import compiled

    def decode(batch: Any, **options: Any) -> list[Record]:
        rows = compiled.open_rows(batch, **options)
        return [Record(*row[2:7]) for row in rows.take(1 << 31, "t", 0, "CreateTime")]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "index_records", walk)
        patch.setattr(compiled, "ROWS_MIN", 0)
        yield decode
