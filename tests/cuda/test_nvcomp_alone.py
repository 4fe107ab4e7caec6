"""What the engine assumes of nvCOMP: any address, unusual frames, scratch memory; and what damaged chunks do to reads.

`tests/on_gpu` collects these tests once more, for a real GPU.
"""

import gzip
from contextlib import closing

import numcodecs
import numpy as np
import pytest
from helpers.simulated.in_use import in_use
from on_gpu import damage

from benchmarks.gpu.resident import FORMATS, Workspace, resident_streams
from xarray_gpuzarr.cuda.nvcomp_formats import fastest_format, zstd_temp_nbytes
from xarray_gpuzarr.machine.diagnosis import rates
from xarray_gpuzarr.machine.diagnosis.samples import COMPRESSORS, series
from xarray_gpuzarr.read import reading

SMOOTH = series(2048).tobytes()
NOISE = np.random.default_rng(0).bytes(len(SMOOTH))
FRAMES = {
    "with a content checksum": (SMOOTH, numcodecs.Zstd(level=3, checksum=True)),
    "level 19": (SMOOTH, numcodecs.Zstd(level=19)),
    "level -5": (SMOOTH, numcodecs.Zstd(level=-5)),
    "nothing to compress": (NOISE, numcodecs.Zstd(level=1)),
    "matches farther back than a block": (200_000 * b"\1" + NOISE * 2, numcodecs.Zstd(level=19)),
}


@pytest.fixture
def gpu(monkeypatch):
    """A simulated GPU, active."""
    gpu = in_use(monkeypatch)
    monkeypatch.setattr(rates, "decoder_for", reading.decoder_for)
    with gpu.api.activate():
        yield gpu.api
    gpu.api.check()


@pytest.fixture
def ask(gpu):
    """Ask as a process of its own would."""
    return lambda *question: damage.ASK[question[0]](gpu, *question[1:])


@pytest.mark.parametrize("codec", FORMATS)
@pytest.mark.parametrize("shift", [0, 1, 3, 7, 4])
def test_streams_at_any_address_that_nvcomp_takes(gpu, codec, shift):
    fmt, head, tail = FORMATS[codec]
    values = series(256)
    encoded = COMPRESSORS[codec].encode(values)
    if shift % gpu.nvcomp.alignment(fastest_format(fmt, values.nbytes)).source:
        return  # nvCOMP says that it does not take them
    with closing(Workspace(gpu)) as space:
        streams = resident_streams(space, fmt, [encoded[head : len(encoded) - tail]] * 50, values.nbytes, shift=shift)
        assert streams.what_is_wrong(values.tobytes()) == ""


@pytest.mark.parametrize(("content", "codec"), FRAMES.values(), ids=FRAMES)
def test_unusual_zstd_frames_are_decoded(gpu, content, codec):
    with closing(Workspace(gpu)) as space:
        streams = resident_streams(space, "zstd", [bytes(codec.encode(content))] * 8, len(content))
        assert streams.what_is_wrong(content) == ""


@pytest.mark.parametrize(("nbytes", "fmt"), [(1 << 16, "gzip"), (1 << 17, "gzip, looking ahead")])
def test_gzip_is_asked_of_the_algorithm_that_reads_use(gpu, nbytes, fmt):
    values = bytes(range(256)) * (nbytes // 256)
    with closing(Workspace(gpu)) as space:
        streams = resident_streams(space, "gzip", [gzip.compress(values)] * 3, nbytes)
        assert (streams.fmt, streams.what_is_wrong(values)) == (fmt, "")


@pytest.mark.parametrize(("n", "nbytes"), [(1, 65_536), (400, 1_024_000), (24, 4 << 20), (6400, 65_536)])
def test_zstd_takes_no_more_scratch_memory_than_is_planned(gpu, n, nbytes):
    said = gpu.nvcomp.temp_nbytes("zstd", n_chunks=n, max_nbytes=nbytes, total_nbytes=n * nbytes)
    assert said <= zstd_temp_nbytes(n, n * nbytes)


@pytest.mark.parametrize("kind", damage.DAMAGES)
@pytest.mark.parametrize("codec", damage.CODECS)
def test_a_damaged_chunk_is_an_error_or_what_the_host_decodes(ask, codec, kind):
    found = ask("read", codec, kind)

    allowed = ("right values",) if kind == "none" else ("right values", "values as the host", "CorruptChunkError")
    assert found.get("goes on"), found
    assert found["said"].startswith(allowed)
