"""The nvCOMP binding: against the fake on host memory, and against the library itself as far as that needs no GPU."""

import ctypes
import gzip
import re
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import imagecodecs
import numcodecs
import numpy as np
import pytest
import zstandard
from helpers.simulated.fake_nvcomp import FakeNvcomp, needed_temp
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr.cuda import nvcomp
from xarray_gpuzarr.cuda.nvcomp import Alignment, Batch, Nvcomp, status_name
from xarray_gpuzarr.cuda.nvcomp_formats import MAX_CHUNK_NBYTES, Format, fastest_format, zstd_temp_nbytes
from xarray_gpuzarr.cuda.nvcomp_library import load_nvcomp
from xarray_gpuzarr.errors import CudaError, DeviceUnavailableError


def _deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


ENCODE = {
    "zstd": zstandard.ZstdCompressor().compress,
    "lz4": lambda data: numcodecs.LZ4().encode(data)[4:],
    "gzip": gzip.compress,
    "gzip, looking ahead": gzip.compress,
    "deflate": _deflate,
    "snappy": lambda data: imagecodecs.snappy_encode(data, None),
}
LENGTHS = [1, 70_000, *range(2, 2000, 50)]
CHUNKS = [np.arange(n, dtype="u2").tobytes()[:n] for n in LENGTHS]
NAMES = {"zstd": "Zstd", "gzip, looking ahead": "Gzip, looking ahead"}
"""Of formats that need scratch memory."""


class HostBatch:
    """Chunks that start as misaligned as their format allows."""

    def __init__(self, fmt: Format, encoded: list[bytes], capacity: list[int]) -> None:
        n = len(encoded)
        self.fmt = fmt
        self.sources = [_misaligned(chunk, 4 if fmt in {"deflate", "gzip, looking ahead"} else 1) for chunk in encoded]
        self.outputs = [np.zeros(nbytes, "u1") for nbytes in capacity]
        self.temp = np.zeros(needed_temp(NAMES.get(fmt, fmt), n, sum(capacity)) // 8 + (fmt in NAMES), "u8")
        self.columns = {
            "sources": np.array([source.ctypes.data for source in self.sources], "u8"),
            "source_nbytes": np.array([len(source) for source in self.sources], "u8"),
            "capacity": np.array(capacity, "u8"),
            "actual": np.full(n, 99, "u8"),
            "outputs": np.array([output.ctypes.data for output in self.outputs], "u8"),
            "statuses": np.full(n, -1, "i4"),
        }
        self.addresses = {name: column.ctypes.data for name, column in self.columns.items()}
        self.addresses["temp"] = self.temp.ctypes.data

    def decompress(self, functions: object, *, stream: int = 0, lacking: int = 0) -> None:
        """Decode through the binding; `lacking` bytes of scratch memory are kept back."""
        addresses = dict(self.addresses)
        scratch = {"temp": addresses.pop("temp"), "temp_nbytes": self.temp.nbytes - lacking}
        batch = Batch(**addresses)
        Nvcomp(functions).decompress(self.fmt, batch, n_chunks=len(self.outputs), **scratch, stream=stream)

    @property
    def statuses(self) -> list[int]:
        return self.columns["statuses"].tolist()

    @property
    def decoded(self) -> list[bytes]:
        actual = self.columns["actual"].tolist()
        return [output[:nbytes].tobytes() for output, nbytes in zip(self.outputs, actual, strict=True)]


def whole_batch(fmt: Format) -> HostBatch:
    return HostBatch(fmt, [ENCODE[fmt](chunk) for chunk in CHUNKS], LENGTHS)


def _misaligned(chunk: bytes, alignment: int) -> np.ndarray:
    memory = np.zeros(len(chunk) + 16, "u1")
    first = -memory.ctypes.data % 8 + alignment
    memory[first : first + len(chunk)] = np.frombuffer(chunk, "u1")
    return memory[first : first + len(chunk)]


FORMATS = list(ENCODE)
ALIGNMENTS = {  # (source, output, temp), as the headers' functions answered
    "zstd": (1, 1, 8),
    "lz4": (1, 1, 1),
    "gzip": (1, 1, 1),
    "gzip, looking ahead": (4, 1, 8),
    "deflate": (4, 1, 1),
    "snappy": (1, 1, 1),
}


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


NO_CONTENT_SIZE = zstandard.ZstdCompressor(write_content_size=False).compress(b"abcd")
UNUSUAL = {
    "two zstd frames": ("zstd", ENCODE["zstd"](b"ab") * 2),
    "a zstd frame without a content size": ("zstd", NO_CONTENT_SIZE),
    "two gzip members": ("gzip", ENCODE["gzip"](b"ab") * 2),
    "bytes after a gzip member": ("gzip", ENCODE["gzip"](b"abcd") + b"\0"),
    "zlib for deflate": ("deflate", zlib.compress(b"abcd")),
    "a length before an LZ4 block": ("lz4", numcodecs.LZ4().encode(b"abcd")),
    "nothing": ("gzip", b""),
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_the_fake_decodes_nothing_that_the_library_does_not_promise(case):
    fmt, encoded = UNUSUAL[case]
    host = HostBatch(fmt, [encoded], [4])

    host.decompress(FakeNvcomp())

    assert host.statuses == [12]


@pytest.mark.parametrize("fmt", FORMATS)
def test_no_chunks_call_nothing(fmt):
    HostBatch(fmt, [], []).decompress(FakeNvcomp())


def test_the_stream_reads_the_columns_when_it_gets_there():
    queue: list[tuple[int, Callable[[], None]]] = []
    host = whole_batch("lz4")
    sizes = host.columns["source_nbytes"].copy()
    host.columns["source_nbytes"][:] = 0

    host.decompress(FakeNvcomp(lambda stream, work: queue.append((stream, work))), stream=77)
    before = host.statuses
    host.columns["source_nbytes"][:] = sizes
    [(stream, work)] = queue
    work()

    assert stream == 77
    assert set(before) == {-1}
    assert host.decoded == CHUNKS


FAULTS = {  # the format, and the entry that a column gets for one chunk
    "Deflate: a source that is no multiple of 4": ("deflate", "sources", lambda host: host.sources[2].ctypes.data + 2),
    "Zstd: outputs inside the scratch memory": ("zstd", "outputs", lambda host: host.temp.ctypes.data + 8),
    "Zstd: sources inside the scratch memory": ("zstd", "sources", lambda host: host.temp.ctypes.data - 1),
    "Zstd: less scratch memory than needed": ("zstd", "capacity", lambda host: 2000),
    "LZ4: a chunk of more than 4294967295 bytes": ("lz4", "capacity", lambda host: 2**32),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_ends_a_process_is_a_fault(fault):
    fmt, column, entry = FAULTS[fault]
    queue: list[Callable[[], None]] = []
    fake, host = FakeNvcomp(lambda _, work: queue.append(work)), whole_batch(fmt)

    host.decompress(fake)
    host.columns[column][2] = entry(host)
    [work] = queue
    work()

    assert fake.faults == [fault]
    assert set(host.statuses) == {-1}


def test_a_refused_call_names_the_call_the_status_and_what_is_left():
    host = HostBatch("zstd", [ENCODE["zstd"](b"abcd")], [4])
    address = host.temp.ctypes.data

    with pytest.raises(CudaError) as caught:
        host.decompress(FakeNvcomp(), stream=255, lacking=8)

    assert str(caught.value) == (
        "nvCOMP refused a call\n"
        "  tried: nvcompBatchedZstdDecompressAsync"
        f"(n_chunks=1, temp={address:#x}, temp_nbytes=6944, stream=0xff)\n"
        "  found: status InvalidValue (10)\n"
        "  do:    report it: nvCOMP refused what it was asked; nothing was started, and the GPU works on"
    )


@pytest.mark.parametrize(("code", "name"), [(0, "Success"), (12, "CannotDecompress"), (1000, "CudaError"), (77, "77")])
def test_status_names(code, name):
    assert status_name(code) == name


def package(load_library: Callable[[], object]) -> ModuleType:
    module = ModuleType("nvidia.libnvcomp")
    module.__path__ = ["/somewhere/libnvcomp"]
    module.__version__ = "6.0.0.12"
    module.load_library = load_library
    return module


def refuse() -> object:
    raise OSError("libnvcomp.so.6: cannot open shared object file")


UNAVAILABLE = {
    "absent": (None, "nvidia.libnvcomp", "nvidia.libnvcomp"),
    "nothing loads": (package(lambda: None), "/somewhere/libnvcomp", "6.0.0.12, but no library loads"),
    "the loader fails": (package(refuse), "/somewhere/libnvcomp", "libnvcomp.so.6: cannot open"),
    "too old": (package(lambda: FakeNvcomp(version=5002)), "/somewhere/libnvcomp", "nvCOMP 5.0.2; "),
    "no limits": (package(lambda: FakeNvcomp(version=5100)), "/somewhere/libnvcomp", "nvCOMP 5.1.0; "),
    "hangs": (package(lambda: FakeNvcomp(version=5201)), "/somewhere/libnvcomp", "nvCOMP 5.2.1; "),
    "too new": (package(lambda: FakeNvcomp(version=7000)), "/somewhere/libnvcomp", "nvCOMP 7.0.0; "),
}


@pytest.mark.parametrize("case", UNAVAILABLE)
def test_a_library_that_cannot_be_used_says_why(case, monkeypatch):
    module, tried, found = UNAVAILABLE[case]
    monkeypatch.setitem(sys.modules, "nvidia.libnvcomp", module)

    with pytest.raises(DeviceUnavailableError) as caught:
        load_nvcomp()

    assert tried in caught.value.tried
    assert found in caught.value.found
    assert "pip install 'xarray-gpuzarr[cuda13]'" in caught.value.do


@pytest.mark.parametrize(("number", "text"), [(5300, "5.3.0"), (6000, "6.0.0"), (6213, "6.2.13")])
def test_version(number, text, monkeypatch):
    fake = FakeNvcomp(version=number)
    monkeypatch.setitem(sys.modules, "nvidia.libnvcomp", package(lambda: fake))

    assert Nvcomp(load_nvcomp()).version == text


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    pytest.importorskip("nvidia.libnvcomp", reason="nvidia-libnvcomp is not installed")
    return load_nvcomp()  # of another version it is an error


@pytest.fixture(scope="module", params=["fake", "fake of version 5", "library"])
def either(request) -> object:
    """The fakes and the library, which are to agree."""
    if request.param == "library":
        return request.getfixturevalue("library")
    return FakeNvcomp(version=5300 if "5" in request.param else 6000)


@pytest.mark.parametrize("fmt", FORMATS)
def test_alignments(fmt, either):
    source, output, temp = ALIGNMENTS[fmt]

    assert Nvcomp(either).alignment(fmt) == Alignment(source=source, output=output, temp=temp)


@given(n_chunks=st.integers(0, 2**24), max_nbytes=st.integers(0, 2**31 - 1), total_nbytes=st.integers(0, 2**42))
def test_zstd_scratch_memory_is_foretold_to_the_byte(either, n_chunks, max_nbytes, total_nbytes):
    asked = Nvcomp(either).temp_nbytes("zstd", n_chunks=n_chunks, max_nbytes=max_nbytes, total_nbytes=total_nbytes)

    assert asked == zstd_temp_nbytes(n_chunks, total_nbytes)


def test_long_gzip_chunks_are_decoded_by_looking_ahead():
    assert [fastest_format("gzip", nbytes) for nbytes in (1, 65536, 65537)] == ["gzip", "gzip", "gzip, looking ahead"]
    assert fastest_format("deflate", 1 << 30) == "deflate"


@pytest.mark.parametrize("fmt", ["lz4", "gzip", "deflate", "snappy"])
def test_other_formats_need_no_scratch_memory(fmt, either):
    assert Nvcomp(either).temp_nbytes(fmt, n_chunks=400, max_nbytes=2**20, total_nbytes=400 * 2**20) == 0


@pytest.mark.parametrize("fmt", ["zstd", "lz4", "gzip", "deflate", "snappy"])
def test_the_largest_chunk_is_the_largest_that_is_accepted(fmt, either):
    _, largest = MAX_CHUNK_NBYTES[fmt]
    Nvcomp(either).temp_nbytes(fmt, n_chunks=1, max_nbytes=largest, total_nbytes=largest)

    with pytest.raises(CudaError, match=r"ChunkSizeTooLarge \(18\)"):
        Nvcomp(either).temp_nbytes(fmt, n_chunks=1, max_nbytes=largest + 1, total_nbytes=largest + 1)


REFUSED = {
    "no sources": ("lz4", {"sources": 0}, "InvalidValue"),
    "no capacities": ("gzip", {"capacity": 0}, "InvalidValue"),
    "a column that is no multiple of 8": ("snappy", {"outputs": 8 * 1000 + 4}, "Alignment"),
    "statuses that are no multiple of 4": ("deflate", {"statuses": 4 * 1000 + 2}, "Alignment"),
    "scratch memory that is no multiple of 8": ("zstd", {"temp": 8 * 1000 + 4}, "Alignment"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_addresses_that_cannot_be_right_are_refused_by_the_call(case, either):
    fmt, addresses, status = REFUSED[case]
    host = whole_batch(fmt)
    host.addresses |= addresses

    with pytest.raises(CudaError, match=f"status {status} "):
        host.decompress(either)


def test_status_names_are_those_of_the_header(library):
    header = Path(library._name).parents[1] / "include/nvcomp/shared_types.h"
    enum = header.read_text().split("typedef enum nvcompStatus_t")[1].split("}")[0]
    codes = dict(re.findall(r"nvcomp(?:Error)?(\w+) = (\d+)", enum))

    assert len(codes) >= 15
    assert {name: status_name(int(code)) for name, code in codes.items()} == {name: name for name in codes}


@pytest.mark.skipif(has_driver(), reason="asks what happens without an NVIDIA driver")
@pytest.mark.parametrize("fmt", FORMATS)
def test_without_a_gpu_a_call_is_an_error(fmt, library):
    with pytest.raises(CudaError, match=r"status CudaError \(1000\)\n  do:    see that nvidia-smi works"):
        whole_batch(fmt).decompress(library)


# --- the headers that the library comes with -------------------------------------------------------------------------

C_TYPES = {"size_t": ctypes.c_size_t, "cudaStream_t": ctypes.c_void_p}


def header_of(library, name):
    text = (Path(library._name).parents[1] / "include/nvcomp" / f"{name.lower()}.h").read_text()
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)


def parameters_of(header, function):
    """Return what a prototype of the header says, parameter by parameter, as ctypes would declare it."""
    (prototype,) = re.findall(rf"\b{function}\s*\(([^;]*)\)\s*;", header)
    for parameter in prototype.split(","):
        base = re.sub(r"\bconst\b", "", parameter).strip().rpartition(" ")[0].strip()
        if "*" in parameter:
            yield "pointer"
        else:
            yield C_TYPES.get(base, base)


@pytest.mark.parametrize("name", ["Zstd", "LZ4", "Gzip", "Deflate", "Snappy"])
@pytest.mark.parametrize("suffix", ["Async", "GetTempSize", "GetRequiredAlignments"])
def test_prototypes_are_those_of_the_header(library, name, suffix):
    binding = Nvcomp(library)
    if suffix == "GetTempSize" and binding.version.startswith("5."):
        suffix = "GetTempSizeAsync"
    function = f"nvcompBatched{name}Decompress{suffix}"
    found = list(parameters_of(header_of(library, name), function))

    said = list(binding._functions[function].argtypes)
    assert len(found) == len(said)
    for in_header, in_binding in zip(found, said, strict=True):
        if in_header == "pointer":
            assert in_binding is ctypes.c_void_p or issubclass(in_binding, ctypes._Pointer)
        elif isinstance(in_header, str):
            assert in_header == f"nvcompBatched{name}DecompressOpts_t"
            assert in_binding is nvcomp._Options
        else:
            assert in_binding is in_header


@pytest.mark.parametrize("name", ["Zstd", "LZ4", "Gzip", "Deflate", "Snappy"])
def test_options_are_laid_out_as_in_the_header(library, name):
    header = header_of(library, name)
    (body,) = re.findall(rf"typedef struct\s*\{{([^}}]*)\}}\s*nvcompBatched{name}DecompressOpts_t;", header)
    fields = [field.split() for field in body.split(";") if field.strip()]
    sizes = [int(re.search(r"\[(\d+)\]", name)[1]) if "[" in name else 4 for _, name in fields]

    assert fields[0] == ["nvcompDecompressBackend_t", "backend"]
    assert fields[1][1] == "algorithm" if name == "Gzip" else all(field != "algorithm" for _, field in fields)
    assert all(kind in {"int", "char"} or kind.startswith("nvcomp") for kind, _ in fields)
    assert sum(sizes) == ctypes.sizeof(nvcomp._Options) == 64
    assert (nvcomp._Options.backend.offset, nvcomp._Options.algorithm.offset) == (0, 4)
    assert "LOOKAHEAD = 1" in header or name != "Gzip"
