"""Writes the frames that the package's self-checks decode: ``python -m helpers.data.known_frames``, from ``tests/``.

Every compressor by the library that most stores come from, every inner codec and shuffle of Blosc, typesizes, levels,
odd lengths, nothing to compress, and frames of several blocks.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import numcodecs
from numcodecs import LZ4, Blosc, GZip, Zlib, Zstd

from helpers.data import blosc_frames as by_hand
from xarray_gpuzarr.decoders.cuda.checks import known_frames as known
from xarray_gpuzarr.decoders.cuda.checks.known_frames import Content, KnownFrame, content

PATH = Path(known.__file__).with_name("known.json")
SHORT, ODD, LONG = 777, 4099, 300_007
"""Decoded bytes."""
BEYOND_LOOKING = 70_001
"""Longer than what gzip's plain algorithm decodes."""
TYPESIZES = {"lz4": (1, 2, 3, 4, 8, 16), "zstd": (2, 4), "blosclz": (2, 4), "zlib": (4,), "snappy": (4,)}
SHUFFLES = {"noshuffle": Blosc.NOSHUFFLE, "shuffle": Blosc.SHUFFLE, "bitshuffle": Blosc.BITSHUFFLE}


def _plain(name: str, codecs: list[numcodecs.abc.Codec], lengths: tuple[int, ...]) -> Iterator[tuple[str, KnownFrame]]:
    contents: tuple[tuple[Content, int], ...] = (
        *(("waves", nbytes) for nbytes in lengths),
        ("noise", SHORT),
        ("zeros", ODD),
        ("waves", 1),
    )
    for number, codec in enumerate(codecs):
        for kind, nbytes in contents:
            if nbytes == LONG and number % 3 != 1:  # one is enough, and takes memory
                continue
            frame = bytes(codec.encode(content(kind, nbytes)))
            writer = f"numcodecs {numcodecs.__version__}: {codec}"
            yield name, KnownFrame(writer=writer, content=kind, nbytes=nbytes, frame=frame)


def _blosc(cname: str) -> Iterator[tuple[str, KnownFrame]]:
    for typesize in TYPESIZES[cname]:
        for label, shuffle in SHUFFLES.items():
            for kind, nbytes, blocksize in (("waves", ODD, 0), ("waves", ODD, 1024), ("noise", SHORT, 0)):
                if (kind == "noise" or blocksize) and typesize != TYPESIZES[cname][-1]:
                    continue
                options = {"shuffle": shuffle, "blocksize": blocksize, "typesize": typesize}
                if cname == "snappy":  # numcodecs is built without it
                    by, block = "as c-blosc does", blocksize or ODD
                    frame = by_hand.encode(
                        content(kind, nbytes), cname=cname, shuffle=shuffle, typesize=typesize, blocksize=block
                    )
                else:
                    by = f"numcodecs {numcodecs.__version__}"
                    frame = Blosc(cname=cname, clevel=5, **options).encode(content(kind, nbytes))
                writer = f"{by}: Blosc {cname}, {label}, typesize {typesize}"
                yield f"blosc {cname}", KnownFrame(writer=writer, content=kind, nbytes=nbytes, frame=bytes(frame))


def written() -> Iterator[tuple[str, KnownFrame]]:
    """Yield the name of a compressor and a frame of it."""
    yield from _plain("zstd", [Zstd(level=1), Zstd(level=5), Zstd(level=19), Zstd(level=-5)], (SHORT, ODD, LONG))
    yield from _plain("lz4", [LZ4(), LZ4(acceleration=20)], (SHORT, ODD, BEYOND_LOOKING))
    yield from _plain("gzip", [GZip(level=1), GZip(level=9)], (SHORT, ODD))
    yield from _plain("zlib", [Zlib(level=1), Zlib(level=9)], (SHORT, ODD, BEYOND_LOOKING))
    looking = GZip(level=5).encode(content("waves", BEYOND_LOOKING))
    writer = f"numcodecs {numcodecs.__version__}: GZip(level=5)"
    yield "gzip", KnownFrame(writer=writer, content="waves", nbytes=BEYOND_LOOKING, frame=bytes(looking))
    for cname in TYPESIZES:
        yield from _blosc(cname)


def main() -> None:
    """Write the file."""
    document: dict[str, list[dict[str, str | int]]] = {}
    for name, known_frame in written():
        fields = {"writer": known_frame.writer, "content": known_frame.content, "nbytes": known_frame.nbytes}
        text = base64.b64encode(known_frame.frame).decode()
        document.setdefault(name, []).append({**fields, "frame": text})
    PATH.write_text(json.dumps(document, indent=0) + "\n")


if __name__ == "__main__":
    main()
