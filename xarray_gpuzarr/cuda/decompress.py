"""One call of nvCOMP, with what has to be looked at before it, and the checksums of what comes out. Called by reads."""

from __future__ import annotations

from xarray_gpuzarr.cuda import nvcomp
from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceApi, Stream
from xarray_gpuzarr.cuda.checksum import Kind, checksum
from xarray_gpuzarr.cuda.zstd import check_zstd


def answer_nbytes(n: int) -> int:
    """Return the bytes of what is said of `n` streams: uint64 lengths, uint64 sums, int32 statuses; a multiple of 8."""
    return 16 * n + -(-n // 2) * 8


def decompress(  # noqa: PLR0913  # what nvCOMP wants to know
    api: DeviceApi,
    stream: Stream,
    fmt: nvcomp.Format,
    kind: Kind | None,
    *,
    table: Address,
    n: int,
    answer: tuple[Address, Address, Address],
    spare: Address,
    temp: Address,
    temp_nbytes: int,
    max_nbytes: int,
) -> None:
    """Enqueue the decoding of streams.

    Parameters
    ----------
    api : DeviceApi
    stream : Stream
    fmt : Format
    kind : {"crc32", "adler32"} or None
        Checksum of the decoded bytes that is wanted.
    table : Address of uint64, shape (4, n)
        Addresses and lengths of the streams, addresses and lengths of what they give. The first two rows are changed
        where a frame is refused.
    n : int
        Number of streams.
    answer : three Addresses
        Written: uint64 lengths; uint64 sums, where zeros must be: checksums if they are wanted, else not 0 where a
        stream is refused before it is decoded; int32 statuses.
    spare : Address
        `SPARE_FRAME`.
    temp : Address
        Scratch memory of `temp_nbytes`.
    temp_nbytes : int
    max_nbytes : int
        Length of the longest decoded stream.
    """
    sources, source_nbytes, outputs, capacity = [Address(table + 8 * n * k) for k in range(4)]
    actual, sums, statuses = answer
    if fmt == "zstd":
        check_zstd(api, stream, table=table, n=n, spare=spare, refused=sums)
    batch = nvcomp.Batch(
        sources=sources,
        source_nbytes=source_nbytes,
        capacity=capacity,
        actual=actual,
        outputs=outputs,
        statuses=statuses,
    )
    api.nvcomp.decompress(fmt, batch, n_chunks=n, temp=temp, temp_nbytes=temp_nbytes, stream=stream.handle)
    if kind is not None:
        checksum(api, stream, kind, table=outputs, n=n, max_nbytes=max_nbytes, result=sums)
