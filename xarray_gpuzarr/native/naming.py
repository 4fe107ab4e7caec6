"""What the compiled library is called. The build runs this file by itself: it imports nothing of the package."""

from hashlib import sha256


def file_name(source: bytes) -> str:
    """Return what the library of a source is called: one of another source is never loaded."""
    return f"loops-{sha256(source).hexdigest()[:12]}.so"
