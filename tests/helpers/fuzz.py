"""Mutated frames by the million: ``make fuzz``. Nothing may crash, reach outside of a frame, or give wrong bytes.

Everything that reads frames before a GPU does is shown frames that were changed at random: the parsers of headers, the
walk over Blosc frames, and the kernels that follow zstd blocks, decode blosclz and unshuffle, built for the host with
sanitizers. What they make of a frame is then compared with what C-Blosc makes of it.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import imagecodecs
import numcodecs.blosc
import numpy as np
import zstandard

from helpers.data import blosc_frames as by_hand
from helpers.kernels.blosc_runs import attempt, decoded_chunks
from helpers.kernels.on_host import sanitized_environment
from helpers.kernels.runs import run_check
from xarray_gpuzarr.frames.blosc import walk_blosc
from xarray_gpuzarr.frames.device_ready import device_ready
from xarray_gpuzarr.frames.headers import FrameError, declared_nbytes
from xarray_gpuzarr.stored.codecs import BloscSpec, CompressorSpec, GzipSpec, Lz4Spec, ZlibSpec, ZstdSpec

BATCH = 250
NBYTES = 1200
"""Decoded length of every frame."""
_WORDS = (0, 1, 16, 20, 24, 128, NBYTES - 1, NBYTES, NBYTES + 1, 2**31 - 1, 2**31, 2**32 - 1)


def content() -> bytes:
    """Return little numbers, then noise: parts of a frame compress and parts do not."""
    rng = np.random.default_rng(0)
    numbers = (np.arange(NBYTES // 4) % 50).astype("i4").tobytes()
    return numbers[: NBYTES // 2] + rng.bytes(NBYTES // 4) + numbers[: NBYTES // 4]


CONTENT = content()
BLOSC_FRAMES = [
    bytes(numcodecs.blosc.compress(CONTENT, cname, 9, shuffle, blocksize, typesize))
    for cname in (b"blosclz", b"lz4", b"zlib", b"zstd")
    for shuffle in (0, 1, 2)
    for blocksize in (0, 256)
    for typesize in (1, 3, 4, 8)
] + [
    *(by_hand.encode(CONTENT, cname="snappy", shuffle=shuffle, blocksize=400) for shuffle in (0, 1, 2)),
    by_hand.stored(CONTENT),
]
_BLOSCLZ_FRAMES = [frame for frame in BLOSC_FRAMES if frame[2] >> 5 == 0]
SPECS: dict[str, tuple[CompressorSpec, list[bytes]]] = {
    "zstd": (ZstdSpec(), [zstandard.ZstdCompressor(level=level).compress(CONTENT) for level in (1, 9)]),
    "gzip": (GzipSpec(), [gzip.compress(CONTENT)]),
    "zlib": (ZlibSpec(), [bytes(numcodecs.Zlib().encode(CONTENT))]),
    "lz4": (Lz4Spec(), [bytes(numcodecs.LZ4().encode(CONTENT))]),
    "blosc": (BloscSpec(cname="any", shuffle="any", typesize=None), BLOSC_FRAMES),
}


def mutants(frames: Sequence[bytes], seed: int, *, length_at: int | None = None) -> Iterator[bytes]:
    """Yield frames that were changed at random, for ever; most say their new length where a word for it is."""
    rng = np.random.default_rng(seed)
    while True:
        for draw in rng.integers(0, 2**31, (1024, 16)).tolist():
            frame = bytearray(frames[draw[0] % len(frames)])
            for number in range(1 + draw[1] % 4):
                _mutate(frame, frames[draw[2] % len(frames)], *draw[3 + 3 * number : 6 + 3 * number])
            if length_at is not None and draw[15] % 8 and len(frame) >= length_at + 4:
                frame[length_at : length_at + 4] = len(frame).to_bytes(4, "little")
            yield bytes(frame)


def _mutate(frame: bytearray, other: bytes, kind: int, where: int, value: int) -> None:
    """Change a frame in one place, more often near its start."""
    at = where % max(1, min(len(frame), 60 if where & 1 << 20 else len(frame)))
    match kind % 8:
        case 0 | 1:
            frame[at : at + 1] = bytes([frame[at] ^ 1 << value % 8]) if at < len(frame) else b""
        case 2:
            frame[at : at + 1] = bytes([value % 256])
        case 3:
            frame[at & ~3 : (at & ~3) + 4] = _WORDS[value % len(_WORDS)].to_bytes(4, "little")
        case 4:
            del frame[at:]
        case 5:
            del frame[at : at + value % 9]
        case 6:
            frame[at:at] = frame[at : at + value % 40]
        case _:
            frame[at:] = other[at:]


# ---- headers


def fuzz_headers(n: int, seed: int) -> dict[str, int]:
    """Read the headers of `n` mutants; return how many a device may be given, and how many zstd frames it takes."""
    counts = {"mutants": 0, "ready": 0, "zstd frames with sound blocks": 0}
    streams = {name: mutants(frames, seed) for name, (_, frames) in SPECS.items()}
    for name in itertools.cycle(SPECS):
        if counts["mutants"] >= n:
            return counts
        spec, batch = SPECS[name][0], list(itertools.islice(streams[name], BATCH))
        for frame in batch:
            _check_declared(spec, frame)
        counts["mutants"] += BATCH
        if name != "blosc":
            data, start, nbytes = laid(batch)
            ready = device_ready(spec, data, start, nbytes, NBYTES)
            counts["ready"] += int(ready.sum())
            if name == "zstd":
                counts["zstd frames with sound blocks"] += _check_zstd(batch, ready)
    raise AssertionError


def _check_declared(spec: CompressorSpec, frame: bytes) -> None:
    try:
        nbytes = declared_nbytes(spec, frame)
    except FrameError:
        return
    assert nbytes is None or nbytes >= 0, frame.hex()


def _check_zstd(frames: list[bytes], ready: np.ndarray) -> int:
    """Let the kernel look at frames; what passes has a ready header, and decodes to what that says or not at all."""
    sound = run_check(frames, NBYTES)
    assert not (np.array(sound) & ~ready).any()
    passed = [frame for frame, is_sound in zip(frames, sound, strict=True) if is_sound]
    for frame in passed:
        decoded = attempt(zstandard.ZstdDecompressor().decompress, frame)
        assert decoded is None or len(decoded) == NBYTES, frame.hex()
    return len(passed)


def laid(frames: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lay frames side by side, with nothing before the first and after the last."""
    nbytes = np.array([len(frame) for frame in frames], np.int64)
    return np.frombuffer(b"".join(frames), np.uint8), np.cumsum(nbytes) - nbytes, nbytes


# ---- Blosc


def fuzz_blosc(n: int, seed: int) -> dict[str, int]:
    """BloscStreams over `n` mutants, decode those that a device may be given, and compare; return how it went."""
    counts = {"mutants": 0, "ready": 0, "decoded": 0}
    one_codec, any_codec = (mutants(frames, seed, length_at=12) for frames in (_BLOSCLZ_FRAMES, BLOSC_FRAMES))
    for stream in itertools.cycle((one_codec, any_codec)):
        if counts["mutants"] >= n:
            return counts
        batch = list(itertools.islice(stream, BATCH))
        data, start, nbytes = laid(batch)
        found = walk_blosc(data, start, nbytes, NBYTES)
        by_hand.check_inside(found, start, nbytes, NBYTES)
        decoded = decoded_chunks(data, found, NBYTES)
        for frame, ours in zip(batch, decoded, strict=True):
            if ours is not None:
                assert ours == by_c_blosc(frame, ours), frame.hex()
        counts["mutants"] += BATCH
        counts["ready"] += int(found.ready.sum())
        counts["decoded"] += sum(chunk is not None for chunk in decoded)
    raise AssertionError


def by_c_blosc(frame: bytes, ours: bytes) -> bytes | None:
    """Return what C-Blosc makes of a frame, None if nothing; it has other versions of other codecs than the host."""
    decoded = attempt(imagecodecs.blosc_decode, frame)
    is_blosclz = frame[2] >> 5 == 0
    return ours if decoded is None and not is_blosclz else decoded


FUZZERS = {"headers": fuzz_headers, "blosc": fuzz_blosc}


def run_sanitized(module: str, *arguments: str) -> int:
    """Run a module in a process under sanitizers; return its exit status."""
    tests = Path(__file__).parents[1]
    environment = sanitized_environment() | {"PYTHONPATH": f"{tests}:{tests.parent}"}
    return subprocess.run([sys.executable, "-m", module, *arguments], env=environment, check=False).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the fuzzers under sanitizers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="mutants for each fuzzer")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    chosen = parser.parse_args(arguments)
    if os.environ.get("XARRAY_GPUZARR_SANITIZE") != "1":
        return run_sanitized("helpers.fuzz", f"--frames={chosen.frames}", f"--seed={chosen.seed}")
    for name, fuzz in FUZZERS.items():
        begun = time.perf_counter()
        counts = fuzz(chosen.frames, chosen.seed)
        told = ", ".join(f"{value} {key}" for key, value in counts.items())
        line = f"{name}: {told}; seed {chosen.seed}, {time.perf_counter() - begun:.0f} s\n"
        sys.stdout.write(line)
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
