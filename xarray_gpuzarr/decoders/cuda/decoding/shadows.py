"""Shadows: chunks that the host decodes as well, from the same bytes, to compare both results.

The comparison uses checksums of decoded bytes, which the device computes on its own, so nothing large is downloaded.
`ResourceOptions.verify` sets which chunks are chosen.
"""

from __future__ import annotations

from xarray_gpuzarr.cuda import checksum
from xarray_gpuzarr.decoders.cuda.batches.columns import Columns, Rows, TableColumn
from xarray_gpuzarr.errors import CudaError
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.process.device_options import Verify
from xarray_gpuzarr.stored.array_spec import ArraySpec


class Shadows(Columns):
    """One row per chunk that the host has decoded as well."""

    n_columns = 2
    crc = TableColumn(1)
    """CRC-32 of the bytes that the host has decoded the chunk to."""


_compared: set[int] = set()
"""Hash of the `ArraySpec` of each array of which this process has compared a chunk. Hashes take less memory."""


class ShadowChoice:
    """Chooses the chunks of one read that the host decodes as well.

    Parameters
    ----------
    spec : ArraySpec
        Array that is read.
    verify : {"first", "all"}
        ``"first"`` chooses one chunk of each array in a process, any other value every chunk.
    """

    def __init__(self, spec: ArraySpec, verify: Verify) -> None:
        self._spec = spec
        self._is_only_first = verify == "first"
        self._has_chosen = False

    def choose(self, chunks: Rows) -> Rows:
        """Return those of the chunk numbers `chunks` that the host is to decode as well."""
        if not self._is_only_first:
            return chunks
        if self._has_chosen or not len(chunks) or hash(self._spec) in _compared:
            return chunks[:0]
        self._has_chosen = True
        return chunks[:1]

    def mark_compared(self) -> None:
        """Remember that a chunk of this array has been compared.

        This is not done by `choose`, because the read may fail between choosing and comparing.
        """
        if self._is_only_first:
            _compared.add(hash(self._spec))


def new_shadow_choice(spec: ArraySpec, verify: Verify | None, *, is_real_gpu: bool) -> ShadowChoice | None:
    """Return the choice of the chunks that the host decodes as well for one read; None if there are none.

    Chunks that are too long for the checksum kernel are not compared. If `verify` is None, one chunk of each array is
    compared, but none on a stand-in for a GPU, which need not be checked.
    """
    if verify is None:
        verify = "first" if is_real_gpu else "off"
    if verify == "off" or spec.chunk_nbytes > checksum.MAX_NBYTES:
        return None
    return ShadowChoice(spec, verify)


class DifferentValuesError(CudaError):
    """Device and host have decoded a chunk to different bytes. Nothing of the read has been returned to anybody."""

    spec: ArraySpec
    """Array of the chunk."""


def different_values(plan: ReadPlan, row: int) -> DifferentValuesError:
    """Return the `DifferentValuesError` for the chunk in one row of a plan."""
    chunk = f"chunk {tuple(plan.chunk[row].tolist())} of array '{plan.spec.path}', object '{plan.key_of(row)}',"
    error = DifferentValuesError(
        f"the GPU decoded {chunk} to other bytes than the host",
        tried=f"{plan.spec.codecs}, with the same encoded bytes for both",
        found="the CRC-32 of what they decoded to differs",
        do="run gpuzarr doctor, and report what gpuzarr doctor --report prints",
    )
    error.spec = plan.spec
    return error
