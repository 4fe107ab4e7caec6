"""Shadow reads: chosen chunks are decoded by the host as well, from the same bytes, and both results are compared.

Compared are checksums of decoded bytes, which the device takes of its own, so that nothing large comes back. Which
chunks are chosen is a setting, `ResourceOptions.verify`.
"""

from __future__ import annotations

from xarray_gpuzarr.decoders.cuda.batches.streams import Columns, Rows, TableColumn
from xarray_gpuzarr.errors import CudaError
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.process.device_options import Verify
from xarray_gpuzarr.stored.array_spec import ArraySpec


class Shadows(Columns):
    """One row per chosen chunk: what it should be."""

    n_columns = 2
    crc = TableColumn(1)
    """CRC-32 of the bytes that the host decodes it to."""


_compared: set[int] = set()
"""Hashes of the arrays of which this process has compared a chunk."""


class Choice:
    """Chooses chunks of one read."""

    def __init__(self, spec: ArraySpec, verify: Verify) -> None:
        self._spec = spec
        self._is_for_first = verify == "first"
        self._is_asked = False

    def of(self, rows: Rows) -> Rows:
        """Return those of some chunks that are to be decoded by the host as well."""
        if not self._is_for_first:
            return rows
        if self._is_asked or not len(rows) or hash(self._spec) in _compared:
            return rows[:0]
        self._is_asked = True
        return rows[:1]

    def compared(self) -> None:
        """Note that chunks have been compared, which may not come to be after they were chosen."""
        if self._is_for_first:
            _compared.add(hash(self._spec))


class DifferentValuesError(CudaError):
    """Device and host have decoded a chunk to different bytes; nothing of the read was given to anybody."""

    spec: ArraySpec


def different_values(plan: ReadPlan, row: int) -> DifferentValuesError:
    """Return the error for one chunk."""
    where = f"chunk {tuple(plan.chunk[row].tolist())} of array '{plan.spec.path}', object '{plan.key_of(row)}',"
    error = DifferentValuesError(
        f"the GPU decoded {where} to other bytes than the host",
        tried=f"{plan.spec.codecs}, with the same encoded bytes for both",
        found="the CRC-32 of what they decoded to differs",
        do="run gpuzarr doctor, and report what gpuzarr doctor --report prints",
    )
    error.spec = plan.spec
    return error
