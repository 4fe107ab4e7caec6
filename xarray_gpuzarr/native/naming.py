"""`file_name`: the file name of the compiled library.

The build runs this file alone, so it imports nothing of the package.
"""

from hashlib import sha256
from pathlib import Path

SOURCES = ("loops.c", "steps.h", "read_box.h", "encode.h", "layout.h")
"""Files that the library is compiled from."""


def file_name(folder: Path) -> str:
    """Return the file name of the library that is compiled from the sources in `folder`.

    The name holds a digest of the sources, so that a library compiled from other sources is never loaded.
    """
    sources = b"".join((folder / name).read_bytes() for name in SOURCES)
    return f"loops-{sha256(sources).hexdigest()[:12]}.so"
