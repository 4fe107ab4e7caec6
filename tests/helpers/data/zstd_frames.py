"""zstd frames of unusual making, and a reader of their headers that goes through the RFC one field at a time."""

import io

import zstandard

RAW, RLE, COMPRESSED, RESERVED = range(4)
KIB = 1024


def zstd(**parameters):
    """Return a compressor with `parameters` of its own."""
    chosen = zstandard.ZstdCompressionParameters(**parameters)
    return zstandard.ZstdCompressor(compression_params=chosen).compress


def flushed_zstd(payload, n_pieces=2):
    """Return a frame whose writer flushed after every piece, and so ends with an empty block."""
    stream = zstandard.ZstdCompressor().compressobj(size=len(payload))
    pieces = [payload[at::n_pieces] for at in range(n_pieces)]
    written = [stream.compress(p) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for p in pieces]
    return b"".join(written) + stream.flush()


def header(*, content_size, width, window=None, low_bits=0):
    """Return a frame header with Frame_Content_Size in `width` bytes; a single segment if no window is given."""
    flag = {0: 0, 1: 0, 2: 1, 4: 2, 8: 3}[width]
    descriptor = flag << 6 | (window is None) << 5 | low_bits
    field = (content_size - 256 * (width == 2)) % 256**width
    return (
        b"\x28\xb5\x2f\xfd"
        + bytes([descriptor, *([] if window is None else [window])])
        + field.to_bytes(width, "little")
    )


def block(kind, size, *, last=False):
    content = 1 if kind == RLE else size
    return (size << 3 | kind << 1 | last).to_bytes(3, "little") + b"x" * content


def blocks(*kinds_and_sizes):
    """Return blocks of which the last one says so."""
    *others, end = kinds_and_sizes
    return b"".join(block(*one) for one in others) + block(*end, last=True)


def is_plain(frame, expected):
    """Say whether `frame` is one zstd frame of `expected` bytes that leaves nothing to doubt."""
    stream = io.BytesIO(frame)
    try:
        size, window = _read_header(stream)
        limit = min(window, 128 * KIB)
        sound = size == expected > 0 and window < 2**32
        return sound and _read_blocks(stream, limit, expected) and not stream.read(1)
    except (EOFError, ValueError):
        return False


def declares(frame, expected):
    """Say whether `frame` has the fewest bytes of one, and a header that declares `expected` bytes."""
    try:
        return len(frame) >= 10 and _read_header(io.BytesIO(frame))[0] == expected
    except (EOFError, ValueError):
        return False


def _take(stream, n):
    found = stream.read(n)
    if len(found) < n:
        raise EOFError
    return int.from_bytes(found, "little")


def _read_header(stream):
    """Return Frame_Content_Size, None if it is left out, and Window_Size; `ValueError` for a frame that is refused."""
    magic, descriptor = _take(stream, 4), f"{_take(stream, 1):08b}"
    if magic != 0xFD2FB528 or descriptor[3:] != "00000":
        raise ValueError
    window = None
    if descriptor[2] == "0":
        window_descriptor = _take(stream, 1)
        exponent, mantissa = divmod(window_descriptor, 8)
        base = 2 ** (10 + exponent)
        window = base + base // 8 * mantissa
    size = {
        "001": lambda: _take(stream, 1),
        "010": lambda: _take(stream, 2) + 256,
        "011": lambda: _take(stream, 2) + 256,
        "100": lambda: _take(stream, 4),
        "101": lambda: _take(stream, 4),
        "110": lambda: _take(stream, 8),
        "111": lambda: _take(stream, 8),
    }.get(descriptor[:3], lambda: None)()
    return size, size if window is None else window


def _read_blocks(stream, limit, expected):
    """Say whether every block is one that the header allows, up to the last."""
    least = most = 0
    for _ in range(64 + expected // 512):
        number = _take(stream, 3)
        last, kind, size = number % 2, number // 2 % 4, number // 8
        if kind == RESERVED or size > limit or (kind == COMPRESSED and size < 2):
            return False
        if kind == RLE:
            _take(stream, 1)
        elif size:
            _take(stream, size)
        least += 0 if kind == COMPRESSED else size
        most += limit if kind == COMPRESSED else size
        if last:
            return least <= expected <= most
    return False
