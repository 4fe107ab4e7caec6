"""Blosc 1.x frames one field at a time: a writer that can make odd ones, a reader, and a decoder of what was found."""

import struct
import zlib

import imagecodecs
import numpy as np
import zstandard

from helpers.data.zstd_frames import declares

CODECS = ("blosclz", "lz4", "snappy", "zlib", "zstd")
ENCODE = {
    "lz4": imagecodecs.lz4_encode,
    "snappy": lambda part: imagecodecs.snappy_encode(part, None),
    "zlib": zlib.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}
RAW = 255


def header(*, flags, typesize, nbytes, blocksize, cbytes, versions=(2, 1)):
    return struct.pack("<4B3I", *versions, flags, typesize, nbytes, blocksize, cbytes)


def assemble(bodies, *, order=None, gap=b"", **fields):
    """Return a frame of the blocks `bodies`, laid down in `order` with a `gap` before each."""
    at = 16 + 4 * len(bodies)
    starts, laid = {}, b""
    for number in order or range(len(bodies)):
        starts[number] = at + len(laid) + len(gap)
        laid += gap + bodies[number]
    table = struct.pack(f"<{len(bodies)}I", *(starts[number] for number in range(len(bodies))))
    return header(cbytes=at + len(laid), **fields) + table + laid


def streams(*parts):
    """Return a block of which each stream is `parts`."""
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def stored(payload, *, flags=2, typesize=4, **fields):
    return header(flags=flags, typesize=typesize, **sizes(payload, len(payload) + 16), **fields) + payload


def sizes(payload, cbytes):
    return {"nbytes": len(payload), "blocksize": len(payload), "cbytes": cbytes}


def encode(payload, *, cname="lz4", typesize=4, shuffle=0, blocksize=1024, split=True, **layout):
    """Return a frame as c-blosc would make it, but for the choice of block and split."""
    blocksize = min(blocksize, len(payload)) // typesize * typesize
    flags = (0, 1, 4)[shuffle] | (not split) << 4 | CODECS.index(cname) << 5
    bodies = []
    for at in range(0, len(payload), blocksize):
        block = payload[at : at + blocksize]
        splits = n_splits(len(block), blocksize, typesize, flags)
        length = len(block) // splits
        content = shuffled(block, typesize, shuffle)
        parts = [content[n * length : (n + 1) * length] for n in range(splits)]
        bodies.append(streams(*(shortest(part, cname) for part in parts)))
    return assemble(bodies, flags=flags, typesize=typesize, nbytes=len(payload), blocksize=blocksize, **layout)


def shortest(part, cname):
    packed = bytes(ENCODE[cname](part))
    return packed if len(packed) != len(part) and (len(packed) < len(part) or cname == "snappy") else part


def n_splits(nbytes, blocksize, typesize, flags):
    if flags & 16 or typesize > 16 or nbytes < blocksize:
        return 1
    return typesize if nbytes // typesize >= 128 else 1


def shuffled(block, typesize, shuffle):
    """Apply the filter to one block."""
    n = len(block) // typesize
    elements, rest = np.frombuffer(block, np.uint8, n * typesize).reshape(n, typesize), block[n * typesize :]
    if filter_of(len(block), typesize, (0, 1, 4)[shuffle]) == 1:
        return elements.T.tobytes() + rest
    if filter_of(len(block), typesize, (0, 1, 4)[shuffle]) == 2:
        bits = np.unpackbits(elements, axis=1, bitorder="little")
        return np.packbits(bits.T, axis=1, bitorder="little").tobytes() + rest
    return block


def unshuffled(block, typesize, kind):
    """Undo the filter of one block: uint8 in, uint8 out."""
    n = block.size // typesize
    whole, rest = block[: n * typesize], block[n * typesize :]
    if kind == 1:
        whole = whole.reshape(typesize, n).T.ravel()
    if kind == 2:
        bits = np.unpackbits(whole.reshape(8 * typesize, n // 8), axis=1, bitorder="little")
        whole = np.packbits(bits.T, axis=1, bitorder="little").ravel()
    return np.concatenate([whole, rest])


def filter_of(nbytes, typesize, flags):
    if nbytes < typesize:
        return 0
    if flags & 1:
        return 1 if typesize > 1 else 0
    return 2 if flags & 4 and nbytes // typesize % 8 == 0 else 0


def read(frame, expected):
    """Return the streams and blocks of one frame, or None where a device should not see it.

    A stream is (source, source_nbytes, target, target_nbytes, codec), a block is (start, nbytes, typesize, filter).
    """
    try:
        frame = without_what_follows(frame)
        flags, typesize, blocksize = read_header(frame, expected)
        if not flags & 2:
            return read_blocks(frame, flags, typesize, blocksize, expected)
    except (ValueError, struct.error):
        return None
    return ([(16, expected, 0, expected, RAW)], []) if expected + 16 == len(frame) else None


def without_what_follows(frame):
    (cbytes,) = struct.unpack("<i", frame[12:16])
    if not 16 <= cbytes <= len(frame):
        raise ValueError
    return frame[:cbytes]


def read_header(frame, expected):
    version, codec_version, flags, typesize, nbytes, blocksize, cbytes = struct.unpack("<4B3i", frame[:16])
    if (version, codec_version, nbytes, cbytes) != (2, 1, expected, len(frame)) or expected > 2**31 - 17:
        raise ValueError
    if typesize == 0 or flags & 8 or flags & 5 == 5 or flags >> 5 > 4 or not 0 < blocksize <= min(nbytes, 715827542):
        raise ValueError
    if blocksize % n_splits(blocksize, blocksize, typesize, flags):
        raise ValueError
    return flags, typesize, blocksize


def read_blocks(frame, flags, typesize, blocksize, expected):
    found, blocks = [], []
    starts = range(0, expected, blocksize)
    table = struct.unpack_from(f"<{len(starts)}I", frame, 16)
    for first, start in zip(table, starts, strict=True):
        at, nbytes = first, min(blocksize, expected - start)
        splits = n_splits(nbytes, blocksize, typesize, flags)
        if first < 16 + 4 * len(starts):
            raise ValueError
        for number in range(splits):
            length = nbytes // splits
            stream = take(frame, at, length, flags >> 5)
            codec = RAW if len(stream) == length else flags >> 5
            found.append((at + 4, len(stream), start + number * length, length, codec))
            at += 4 + len(stream)
        blocks.append((start, nbytes, typesize, filter_of(nbytes, typesize, flags)))
    if len(frame) - 16 < 4 * len(starts) + 5 * len(found):
        raise ValueError
    return found, blocks if any(block[3] for block in blocks) else []


def take(frame, at, length, codec):
    """Return the stream whose length is at `at`, if it can decode to `length` bytes."""
    (nbytes,) = struct.unpack_from("<I", frame, at)
    stream = frame[at + 4 : at + 4 + nbytes]
    if not 0 < nbytes == len(stream):
        raise ValueError
    if nbytes != length:
        longest = length + length // 6 + 32 if CODECS[codec] == "snappy" else length
        if nbytes > longest or not PLAUSIBLE[CODECS[codec]](stream, length):
            raise ValueError
    return stream


def zlib_is_plain(stream, length):
    header_of = int.from_bytes(stream[:2], "big")
    return len(stream) >= 9 and header_of % 31 == 0 and header_of & 0x0F20 == 0x0800 and header_of < 0x8000


def snappy_declares(stream, length):
    for at, byte in enumerate(stream[:5]):
        length -= (byte & 127) << 7 * at
        if byte < 128:
            return length == 0
    return False


PLAUSIBLE = {
    "blosclz": lambda stream, length: True,
    "lz4": lambda stream, length: True,
    "snappy": snappy_declares,
    "zlib": zlib_is_plain,
    "zstd": declares,
}


def by_c_blosc(stream, length):
    """Decode a stream as the only one of a frame."""
    frame = assemble([streams(stream)], flags=16, typesize=1, nbytes=length, blocksize=length)
    return imagecodecs.blosc_decode(frame)


DECODE = {
    0: by_c_blosc,
    1: lambda stream, length: bytes(imagecodecs.lz4_decode(stream, out=length)),
    2: lambda stream, length: bytes(imagecodecs.snappy_decode(stream)),
    3: lambda stream, length: zlib.decompress(stream),
    4: lambda stream, length: zstandard.ZstdDecompressor().decompress(stream),
    RAW: lambda stream, length: bytes(stream),
}


def decode(data, found, expected):
    """Return every chunk, decoded from the columns of `walk_blosc` alone: uint8, shape (n, expected).

    What no stream and no block fills is 0xA5.
    """
    chunks = np.full((len(found.ready), expected), 0xA5, np.uint8)
    for row in rows(found, "chunk", "source", "source_nbytes", "target", "target_nbytes", "codec"):
        chunk, source, source_nbytes, target, target_nbytes, codec = row
        content = DECODE[codec](data[source : source + source_nbytes].tobytes(), target_nbytes)
        chunks[chunk, target : target + target_nbytes] = np.frombuffer(content, np.uint8)
    out = chunks.copy()
    out[found.block_chunk] = 0xA5
    for chunk, start, nbytes, typesize, kind in rows(found, *BLOCK_COLUMNS):
        out[chunk, start : start + nbytes] = unshuffled(chunks[chunk, start : start + nbytes], typesize, kind)
    return out


BLOCK_COLUMNS = ("block_chunk", "block_start", "block_nbytes", "block_typesize", "block_shuffle")


def check_inside(found, start, nbytes, expected):
    """Check that what is found lies inside its chunk and target, and that the targets are filled once."""
    first, end = start[found.chunk], (start + nbytes)[found.chunk]
    streams_fill = np.bincount(found.chunk, found.target_nbytes, len(start))
    blocks_fill = np.bincount(found.block_chunk, found.block_nbytes, len(start))

    assert (first + 16 <= found.source).all()
    assert (found.source_nbytes > 0).all()
    assert (found.source + found.source_nbytes <= end).all()
    assert (found.target >= 0).all()
    assert (found.target_nbytes > 0).all()
    assert (found.target + found.target_nbytes <= expected).all()
    assert (streams_fill == expected * found.ready).all()
    assert np.isin(blocks_fill[found.ready], [0, expected]).all()
    assert not blocks_fill[~found.ready].any()


def rows(found, *names):
    return zip(*(getattr(found, name).tolist() for name in names), strict=True)


def parts_of(found, start):
    """Return what `read` returns for each chunk, from the columns; sources count from the start of the chunk."""
    parts = [([], []) if ready else None for ready in found.ready.tolist()]
    for chunk, source, *stream in rows(found, "chunk", "source", "source_nbytes", "target", "target_nbytes", "codec"):
        parts[chunk][0].append((source - int(start[chunk]), *stream))
    for chunk, *block in rows(found, *BLOCK_COLUMNS):
        parts[chunk][1].append(tuple(block))
    return [part and (sorted(part[0], key=lambda stream: stream[2]), part[1]) for part in parts]
