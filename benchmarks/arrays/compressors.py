"""Compressors by name: one line of text in a workload, and what zarr and an encoder make of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import imagecodecs
import numcodecs
import numpy as np
import numpy.typing as npt
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zarr_numcodecs

Family = Literal["none", "zstd", "gzip", "lz4", "zlib", "blosc"]

INNER_CODECS = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
_NEEDS_LEVEL = ("zstd", "gzip", "zlib")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressor:
    """How chunks are compressed; `from_text` makes one."""

    family: Family
    level: int = 0
    cname: str = ""
    """Inner codec of Blosc."""
    shuffle: str = ""
    """One of `SHUFFLES` for Blosc."""

    @classmethod
    def from_text(cls, text: str) -> Compressor:
        """Return the compressor that a text names.

        Parameters
        ----------
        text : str
            ``"none"``, ``"lz4"``, ``"zstd 3"``, ``"gzip 5"``, ``"zlib 5"``, or ``"blosc zstd 3 shuffle"``: inner codec,
            level and shuffle.

        Raises
        ------
        ValueError
            There is no such compressor.
        """
        family, *rest = text.split() or [""]
        if family in ("none", "lz4") and not rest:
            return cls(family=cast("Family", family))
        if family in _NEEDS_LEVEL and len(rest) == 1 and rest[0].isdecimal():
            return cls(family=cast("Family", family), level=int(rest[0]))
        if family == "blosc" and len(rest) == 3 and rest[0] in INNER_CODECS and rest[2] in SHUFFLES:
            return cls(family="blosc", cname=rest[0], level=int(rest[1]), shuffle=rest[2])
        raise ValueError(f"unknown compressor {text!r}; families: {', '.join(get_args(Family))}")

    def for_zarr(self, itemsize: int, zarr_format: int) -> Any:
        """Return what `zarr.create_array` takes as its compressor for elements of so many bytes; None for none."""
        if zarr_format == 2:
            return self._for_v2()
        names: dict[str, Any] = {"cname": self.cname, "shuffle": self.shuffle}
        return {
            "none": lambda: None,
            "zstd": lambda: ZstdCodec(level=self.level),
            "gzip": lambda: GzipCodec(level=self.level),
            "lz4": zarr_numcodecs.LZ4,
            "zlib": lambda: zarr_numcodecs.Zlib(level=self.level),
            "blosc": lambda: BloscCodec(clevel=self.level, typesize=itemsize, **names),
        }[self.family]()

    def _for_v2(self) -> Any:
        if self.family == "none":
            return None
        options = {} if self.family == "lz4" else {"level": self.level}
        if self.family == "blosc":
            options = {"cname": self.cname, "clevel": self.level, "shuffle": SHUFFLES.index(self.shuffle)}
        return numcodecs.get_codec({"id": self.family, **options})

    def encode(self, chunk: npt.NDArray[Any]) -> bytes:
        """Return the bytes of a stored chunk, given its elements in C order."""
        if self.family == "none":
            return chunk.tobytes()
        if self.cname == "snappy":  # numcodecs is built without it
            number = SHUFFLES.index(self.shuffle)
            return bytes(imagecodecs.blosc_encode(chunk, level=self.level, compressor="snappy", shuffle=number))
        return bytes(np.asarray(self._for_v2().encode(chunk)))
