"""Cases of more threads than this machine has cores: chunks whose codec sleeps for as long as it would compute.

So only Python's lock, and what hands out chunks, hold a read or a write back. Of a packed variable 16 elements of each
chunk are read, since placing all would keep these cores busy, and one chunk is written again and again. *bare sleeps*
are as many on as many threads, and nothing else.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import xarray as xr
import zarr
from zarr.codecs import ZstdCodec

from benchmarks.runner.session import Case, Contestant, Ready
from benchmarks.shared import seconds
from xarray_gpuzarr import zarr_pipeline
from xarray_gpuzarr.decoders.host import native_program
from xarray_gpuzarr.native.codec_functions import NativeCodec, NativeEncoder
from xarray_gpuzarr.write import encoder

_RATE, _N_SHARDS = 0.7e9, 8
"""Bytes that a thread decodes in a second, as in `nap`."""
_LAYOUTS = ((64, 1_048_576, 64), (32, 131_072, 512))
"""Threads, bytes of a chunk, and chunks for each thread."""
_SOURCE = """
#include <sys/prctl.h>
#include <time.h>
unsigned long nap(void *context, void *to, unsigned long nbytes)
{
    prctl(PR_SET_TIMERSLACK, 1); /* or each sleep takes 50 us longer */
    nanosleep(&(struct timespec){0, (long)(nbytes / 0.7)}, 0);
    return nbytes;
}
unsigned long nap_encoding(void *context, void *to, unsigned long room, const void *from, unsigned long nbytes)
{
    return nap(context, to, nbytes) ? 16 : 0;
}
void naps(long n, unsigned long nbytes) { while (n--) nap(0, 0, nbytes); }
"""


def cases(scale: float, folder: Path) -> list[Case]:
    """Return the cases of this module; see `benchmarks.__main__.CaseBuilder`."""
    layouts = _LAYOUTS if sys.platform == "linux" else ()
    return [_case(n, nbytes, max(1, round(each * scale)), folder) for n, nbytes, each in layouts]


def _case(n_threads: int, nbytes: int, each: int, folder: Path) -> Case:
    def measure(run: Callable[[], object]) -> float:
        naps = _sleeper(folder)
        decode, encode = (ctypes.cast(nap, ctypes.c_void_p).value or 0 for nap in (naps.nap, naps.nap_encoding))
        more = patch.dict(os.environ, XARRAY_GPUZARR_NUM_THREADS=str(n_threads))
        decoding = patch.object(native_program, "native_codec", lambda _: NativeCodec(number=1, decode=decode))
        with more, decoding, patch.object(encoder, "native_encoder", lambda _: NativeEncoder(encode=encode)):
            return seconds(run)

    def ready(run: Callable[[], object], close: Callable[[], object]) -> Ready:
        best_s = min(measure(run) for _ in range(10))  # the first ones start threads
        facts = {"of the ideal": round(each * nbytes / _RATE / best_s, 2)}
        return Ready(measure=partial(measure, run), facts=facts, close=close)

    def read(*, is_packed: bool) -> Ready:
        path = _write(folder / f"naps-{n_threads * each}.zarr", n_threads * each, nbytes // 2)
        ds = xr.open_dataset(path, engine="gpuzarr", device="host", mask_and_scale=is_packed, consolidated=False)
        wanted = ds.v[:: nbytes // 32] if is_packed else ds.v
        forget = native_program.native_program.cache_clear  # other arrays are not to be decoded by a nap
        forget()
        return ready(lambda: wanted.copy().load(), forget)

    def write() -> Ready:
        n_chunks, n, path = n_threads * each, nbytes // 2, folder / "written.zarr"
        layout: Any = {"shape": (n_chunks, n), "chunks": (1, n), "shards": (-(-n_chunks // _N_SHARDS), n)}
        with zarr_pipeline():
            array = zarr.create_array(path, **layout, dtype="i2", compressors=ZstdCodec(), overwrite=True)
        chunks, forget = np.broadcast_to(np.ones(n, "i2"), array.shape), encoder.make_encoder.cache_clear
        forget()
        return ready(lambda: array.__setitem__(..., chunks), forget)

    def bare() -> Ready:
        naps, pool = _sleeper(folder).naps, ThreadPoolExecutor(n_threads)
        return ready(lambda: [*pool.map(naps, [each] * n_threads, [nbytes] * n_threads)], pool.shutdown)

    summary = f"{n_threads * each} chunks whose codec sleeps {nbytes / _RATE * 1e3:.2f} ms, {n_threads} threads"
    contestants = [
        Contestant(name="gpuzarr", nbytes=0, prepare=partial(read, is_packed=False)),
        Contestant(name="gpuzarr, packed", nbytes=0, prepare=partial(read, is_packed=True)),
        Contestant(name="gpuzarr, written", nbytes=0, prepare=write),
        Contestant(name="bare sleeps", side="bare", nbytes=0, prepare=bare),
    ]
    return Case(name=f"threads/{nbytes >> 10} KiB x{n_threads}", summary=summary, contestants=lambda: contestants)


@cache
def _sleeper(folder: Path) -> ctypes.CDLL:
    folder.mkdir(parents=True, exist_ok=True)
    compiler = [os.environ.get("CC", "cc"), "-x", "c", "-O2", "-shared", "-fPIC", "-o", f"{folder}/nap.so", "-"]
    subprocess.run(compiler, input=_SOURCE, text=True, check=True)
    return ctypes.CDLL(f"{folder}/nap.so")


def _write(path: Path, n_chunks: int, n: int) -> Path:
    """Write chunks of `n` ones, packed; all shards after the first are copies of it."""
    if not path.exists():
        per_shard = n_chunks // _N_SHARDS * n
        layout: Any = {"shape": (_N_SHARDS * per_shard,), "chunks": (n,), "shards": (per_shard,), "dtype": "i2"}
        about: Any = {"dimension_names": ["x"], "attributes": {"scale_factor": 0.5}, "compressors": ZstdCodec()}
        partial_path = path.with_suffix(".partial")
        zarr.create_group(partial_path, overwrite=True).create_array("v", **layout, **about)[:per_shard] = 1
        for number in range(1, _N_SHARDS):
            shutil.copy(partial_path / "v/c/0", partial_path / f"v/c/{number}")
        partial_path.rename(path)
    return path
