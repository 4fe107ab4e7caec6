"""Name of the compiled library. The build runs this file by itself: it imports nothing of the package."""

from hashlib import sha256
from pathlib import Path

SOURCES = ("loops.c", "steps.h", "read_box.h", "encode.h", "layout.h")


def file_name(folder: Path) -> str:
    """Return what the library of the sources in a folder is called: one of other sources is never loaded."""
    source = b"".join((folder / name).read_bytes() for name in SOURCES)
    return f"loops-{sha256(source).hexdigest()[:12]}.so"
