"""Stores that are written to in place: the inodes and times of their files stay."""

import os
from pathlib import Path


def overwrite_in_place(store: Path, other: Path) -> None:
    """Write the chunks or shards of another store over those of a local store, and keep the times of its files."""
    for new in other.rglob("c/**/*"):
        if not new.is_file():
            continue
        old = store / new.relative_to(other)
        before = old.stat()
        with old.open("r+b") as file:
            file.write(new.read_bytes())
            file.truncate()
        os.utime(old, ns=(before.st_atime_ns, before.st_mtime_ns))
