"""How much memory Python takes."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def takes_less_than(nbytes: float) -> Iterator[None]:
    """Fail a block that takes more at any moment, beside what was taken before."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < nbytes
