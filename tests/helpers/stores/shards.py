"""A second, independent reader and writer of shard indexes (Zarr v3 sharding-indexed codec 1.0)."""

import struct

import google_crc32c
import numpy as np

MISSING = 2**64 - 1


def index_bytes(entries: list[tuple[int, int]], *, endian: str = "little", checksum: bool = True) -> bytes:
    """Encode (offset, nbytes) entries."""
    order = "<" if endian == "little" else ">"
    body = b"".join(struct.pack(f"{order}QQ", *entry) for entry in entries)
    return body + struct.pack("<I", google_crc32c.value(body)) * checksum


def index_entries(shard: bytes, n_chunks: int) -> list[tuple[int, int]]:
    """Decode the index at the end of a shard: little endian, with CRC-32C."""
    body = shard[-16 * n_chunks - 4 : -4]
    return [tuple(entry) for entry in np.frombuffer(body, "<u8").reshape(-1, 2).tolist()]


def with_entry(shard: bytes, n_chunks: int, number: int, entry: tuple[int, int]) -> bytes:
    """Return the shard with one index entry replaced and a right checksum."""
    entries = index_entries(shard, n_chunks)
    entries[number] = entry
    return shard[: -16 * n_chunks - 4] + index_bytes(entries)


def chunk_bytes(shard: bytes, n_chunks: int, number: int) -> bytes:
    """Return the encoded bytes of one chunk."""
    offset, nbytes = index_entries(shard, n_chunks)[number]
    return shard[offset : offset + nbytes]


def with_chunk(shard: bytes, n_chunks: int, number: int, encoded: bytes) -> bytes:
    """Return the shard with one chunk replaced by other bytes, appended before the index."""
    body = shard[: -16 * n_chunks - 4]
    entries = index_entries(shard, n_chunks)
    entries[number] = (len(body), len(encoded))
    return body + encoded + index_bytes(entries)
