"""Every exception of the package, in one layout: what was tried, what was found, what to do. And its one warning.

Nothing is decided here and nothing is caught here. All other modules raise these classes; callers can
catch `GpuZarrError` for all of them or the builtin that each class also inherits from.

Names, keys, tags and attributes are whatever somebody wrote into a store: errors, warnings, tables and commands pass
them through `visible`, which escapes control characters, where they leave for a terminal or a notebook. Addresses of
stores may hold passwords and signatures: `masked` leaves these out of all text, that of `visible` included.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Self

_FIRST, _LAST = 1500, 500
"""Characters that are shown of what a client says, which may be the page of a server."""


class GpuZarrError(Exception):
    """Base of every error raised by this package.

    Parameters
    ----------
    headline : str
        One sentence that says what failed, with the array or option it is about.
    tried : str
        What was attempted: array path, shard key, chunk, codec.
    found : str
        What was met instead: numbers, versions, the underlying message.
    do : str
        What the reader of the message can do about it.

    Notes
    -----
    With one argument, ``type(error)(text)``, the text is the whole message. PyTorch raises errors of its workers like
    this.
    """

    def __init__(
        self, headline: str, *, tried: str | None = None, found: str | None = None, do: str | None = None
    ) -> None:
        parts = {"tried": tried, "found": found, "do": do}
        missing = [name for name, part in parts.items() if part is None]
        if 0 < len(missing) < len(parts):
            raise TypeError(f"{type(self).__name__} wants {' and '.join(missing)} as well")
        self.headline = masked(headline)
        super().__init__(self.headline)
        self.tried, self.found, self.do = masked(tried or ""), masked(found or ""), masked(do or "")
        self._is_laid_out = bool(missing)

    def within(self, store: str) -> Self:
        """Say which store this is about, unless the text does, and return this error.

        Parameters
        ----------
        store : str
            Path or URL.
        """
        store = masked(store)
        if self.tried and not self.tried.startswith(f"in {store}: ") and f"{store}/" not in self.headline:
            self.tried = f"in {store}: {self.tried}"
        return self

    def __str__(self) -> str:
        if self._is_laid_out:
            return "\n".join(map(visible, self.headline.split("\n")))
        parts = [self.headline, self.tried, self.found, self.do]
        for number, text in enumerate(parts):
            left_out = len(text) - _FIRST - _LAST
            short = text if left_out <= 0 else f"{text[:_FIRST]} [... {left_out} characters ...] {text[-_LAST:]}"
            parts[number] = visible(short)
        headline, tried, found, do = parts
        return f"{headline}\n  tried: {tried}\n  found: {found}\n  do:    {do}"

    def __reduce__(self) -> tuple[object, ...]:
        # BaseException would call the class with `args`, and subclasses such as OSError would leave the rest out.
        return (type(self), (self.headline,), vars(self))


class GpuZarrWarning(UserWarning):
    """Something works, but is slower than it could be; says what to do, once per process."""


class OptionError(GpuZarrError, ValueError):
    """A keyword or an environment variable has an invalid value."""


class ArrayTypeError(OptionError, TypeError):
    """An array of another kind was expected, such as a zarr array instead of a path."""


class KeywordError(OptionError, TypeError):
    """A keyword does not exist."""


class NoGroupError(OptionError, KeyError, FileNotFoundError):
    """There is no group at a path in a store, no Zarr store in a file, or no dataset in the arrays of a group."""


class SelectionError(GpuZarrError, IndexError):
    """A selection does not fit the array it is applied to."""


class MetadataError(GpuZarrError, ValueError):
    """Stored metadata is inconsistent, names something that does not exist, or is not what an array was opened with."""


class UnsupportedCodecError(GpuZarrError, NotImplementedError):
    """Neither this package nor the installed zarr-python can decode a codec chain."""


class DeviceUnavailableError(GpuZarrError, RuntimeError):
    """``device="cuda"`` or ``storage="gds"`` needs something that is missing."""


class StoreReadError(GpuZarrError, OSError):
    """A store failed, refused, or did not return the bytes that it was asked for."""


class StoreWriteError(GpuZarrError, OSError):
    """A shard or chunk cannot be written; what was stored before is still there."""


class ShardIndexError(GpuZarrError, ValueError):
    """A shard index is truncated, fails its checksum, or points outside its shard."""


class CorruptChunkError(GpuZarrError, ValueError):
    """The encoded bytes of a chunk do not decode to a chunk of the declared size."""


class DeviceMemoryError(GpuZarrError, MemoryError):
    """There is too little device memory or pinned host memory."""


class HostMemoryError(GpuZarrError, MemoryError):
    """There is too little host memory for a result or a chunk."""


class NativeLayoutError(GpuZarrError, ImportError):
    """The compiled loops were built with other structs than the package hands to them."""


class CudaError(GpuZarrError, RuntimeError):
    """A CUDA or nvCOMP call failed."""


def perhaps(name: str, known: Iterable[object]) -> str:
    """Return the known name that another one was probably meant to be, in a few words; empty if none is like it.

    Examples
    --------
    >>> print("choose a dimension" + perhaps("lat", ["time", "latitude"]))
    choose a dimension (perhaps 'latitude')
    """
    close = get_close_matches(name, map(str, known), n=1, cutoff=0.5)
    return f" (perhaps {close[0]!r})" if close else ""


def masked(text: str) -> str:
    """Return text with addresses that show no secrets: what stands before ``@`` and after ``?`` in a URL is left out.

    Examples
    --------
    >>> print(masked("cannot read http://me:secret@host/era5.zarr?signature=secret"))
    cannot read http://***@host/era5.zarr?***
    """
    return _WORD.sub(_without_secrets, text) if "://" in text else text


_WORD = re.compile(r'[^\s<>"]+')
_USER = re.compile(
    # In these schemes it is a container, a bucket or a repository.
    r"\b(?!(?:abfss?|oci|git|github)://)([a-z][\w+.-]{0,20}://)"
    # In a password that should have been quoted there may be a slash; but what looks like a port is one.
    r"(?:[^/?#]*|[^/?#@:\[]*:(?!:|\d*(?:[/?#]|$)).{,200}?)@",
    re.IGNORECASE,
)
_CLOSING = "'`,;:.)]}"
"""What ends a sentence, a string or a call rather than a URL."""


def _without_secrets(word: re.Match[str]) -> str:
    """Mask the URL in a word, if there is one; and not a second time, with what may follow it by then."""
    if "://" not in word[0]:
        return word[0]
    shown = _USER.sub(r"\1***@", word[0])
    address, _, query = shown.partition("?")
    secret = query.rstrip(_CLOSING)
    if "://" not in address or not secret or secret.startswith("***"):
        return shown
    return f"{address}?***{query[len(secret) :]}"


def visible(text: str) -> str:
    r"""Return text in which every character that is not plainly printed is written as `repr` writes it, and `masked`.

    Those are control characters (escape sequences, line breaks), marks that turn the direction of writing or have no
    width, blanks other than the space, and halves of surrogate pairs, which no terminal takes.

    Examples
    --------
    >>> print(visible("wind\x1b[31m\nspeed, größe"))
    wind\x1b[31m\nspeed, größe
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return masked(text)
