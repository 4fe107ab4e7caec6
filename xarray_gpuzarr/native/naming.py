"""`file_name`: the file name of the compiled library.

The build runs this file alone, so it imports nothing of the package.
"""

from hashlib import sha256
from pathlib import Path

SOURCES = (
    "loops.c",
    "conversions.h",
    "steps.h",
    "numbers.h",
    "crc32c.h",
    "job.h",
    "codecs.h",
    "boxes.h",
    "read_state.h",
    "files.h",
    "place_rows.h",
    "read_rows.h",
    "parts.h",
    "contexts.h",
    "read_threads.h",
    "look_up.h",
    "read_box.h",
    "write_state.h",
    "stored_object.h",
    "encode.h",
    "put_object.h",
    "write_threads.h",
    "layout.h",
)
"""Files that the library is compiled from."""


def file_name(folder: Path) -> str:
    """Return the file name of the library that is compiled from the sources in `folder`.

    The name holds a digest of the sources, so that a library compiled from other sources is never loaded.
    """
    sources = b"".join((folder / name).read_bytes() for name in SOURCES)
    return f"loops-{sha256(sources).hexdigest()[:12]}.so"
