"""The package's exceptions and its only warning; and functions for their texts.

`MissingChunkError`, which inherits from zarr-python's error, is in `fetch.strict`.

Every message says what was tried, what was found and what to do. Callers can catch `GpuZarrError` for all exceptions,
or the builtin exception that a class also inherits from.

Names, keys and attributes in a store may contain any characters. Errors, warnings, tables and commands pass them
through `visible`, which escapes control characters, before they are shown in a terminal or a notebook. Addresses of
stores may contain passwords and signatures, which `masked` and `visible` remove from text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Self

_N_FIRST = 1500
_N_LAST = 500
"""Numbers of characters that are shown of the beginning and of the end of a long text, such as a page of a server."""


class GpuZarrError(Exception):
    """Base class of all errors of this package.

    Parameters
    ----------
    headline : str
        A sentence that says what failed, and names the array or the option.
    tried : str
        What was attempted, such as the path of an array, the key of a shard, a chunk or a codec.
    found : str
        What was found instead, such as numbers, versions or the message of another library.
    do : str
        What the user can do about it.

    Notes
    -----
    With a single argument, ``type(error)(text)``, the text is the whole message. In this way, PyTorch makes the error
    of a worker process again in the main process.
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
        self._is_whole_message = bool(missing)
        """Whether `headline` is the whole message, because the other texts were left out."""

    def within(self, store: str) -> Self:
        """Add a store, or a group of one, to the message, and return this error.

        Nothing is added if the message names the store already, or consists of a single text.

        Parameters
        ----------
        store : str
            Path or URL, or a text such as ``"group 'inner'"``.
        """
        store = masked(store)
        if self.tried and not self.tried.startswith(f"in {store}: ") and f"{store}/" not in self.headline:
            self.tried = f"in {store}: {self.tried}"
        return self

    def __str__(self) -> str:
        if self._is_whole_message:
            return "\n".join(map(visible, self.headline.split("\n")))
        headline, tried, found, do = map(_shortened, (self.headline, self.tried, self.found, self.do))
        return f"{headline}\n  tried: {tried}\n  found: {found}\n  do:    {do}"

    def __reduce__(self) -> tuple[object, ...]:
        # The default calls the class with `args`, which is only the headline, and loses the other texts.
        return (type(self), (self.headline,), vars(self))


def _shortened(text: str) -> str:
    """Return a text as `visible` does; if it is long, without its middle."""
    n_left_out = len(text) - _N_FIRST - _N_LAST
    if n_left_out > 0:
        text = f"{text[:_N_FIRST]} [... {n_left_out} characters ...] {text[-_N_LAST:]}"
    return visible(text)


class GpuZarrWarning(UserWarning):
    """Something works, but is slow, is incomplete, or may spoil data. The message says what to do.

    A process warns of a slow or incomplete operation once for each subject, and of one that may spoil data each time.
    """


class OptionError(GpuZarrError, ValueError):
    """A keyword or an environment variable has an invalid value."""


class ArrayTypeError(OptionError, TypeError):
    """An argument is not an array of the expected kind, for example a path instead of a zarr array."""


class KeywordError(OptionError, TypeError):
    """A keyword does not exist."""


class NoGroupError(OptionError, KeyError, FileNotFoundError):
    """A path in a store is no group, a file is no Zarr store, or the arrays of a group are no dataset."""


class SelectionError(GpuZarrError, IndexError):
    """A selection is invalid for the array that it is applied to."""


class MetadataError(GpuZarrError, ValueError):
    """Metadata are inconsistent, name something that does not exist, or have changed since the array was opened."""


class UnsupportedCodecError(GpuZarrError, NotImplementedError):
    """Neither this package nor the installed zarr-python can decode a codec chain."""


class DeviceUnavailableError(GpuZarrError, RuntimeError):
    """``device="cuda"`` or ``storage="gds"`` needs something that is missing."""


class StoreReadError(GpuZarrError, OSError):
    """A store failed, refused access, or returned other bytes than those that were requested."""


class StoreWriteError(GpuZarrError, OSError):
    """A shard or chunk cannot be written. What was stored before is unchanged."""


class ShardIndexError(GpuZarrError, ValueError):
    """A shard index is truncated, has a wrong checksum, or points outside its shard."""


class CorruptChunkError(GpuZarrError, ValueError):
    """The encoded bytes of a chunk do not decode to a chunk of the declared size."""


class DeviceMemoryError(GpuZarrError, MemoryError):
    """Device memory or pinned host memory does not suffice."""


class HostMemoryError(GpuZarrError, MemoryError):
    """Host memory does not suffice for a result or a chunk."""


class NativeLayoutError(GpuZarrError, ImportError):
    """The compiled loops were built with other struct layouts than those that the package uses."""


class CudaError(GpuZarrError, RuntimeError):
    """A CUDA or nvCOMP call failed or, with ``checks="strict"``, a self-check of the GPU."""


def similar_name_hint(name: str, known: Iterable[object]) -> str:
    """Return a remark that names the known name most similar to an unknown one. Empty if none is similar.

    Examples
    --------
    >>> print("choose a dimension" + similar_name_hint("lat", ["time", "latitude"]))
    choose a dimension (perhaps 'latitude')
    """
    close = get_close_matches(name, map(str, known), n=1, cutoff=0.5)
    return f" (perhaps {close[0]!r})" if close else ""


def masked(text: str) -> str:
    """Return text without the secrets in URLs: the parts before ``@`` and after ``?`` are replaced by ``***``.

    Examples
    --------
    >>> print(masked("cannot read http://me:secret@host/era5.zarr?signature=secret"))
    cannot read http://***@host/era5.zarr?***
    """
    return _WORD.sub(_without_secrets, text) if "://" in text else text


_WORD = re.compile(r'[^\s<>"]+')
"""A word that may be a URL."""
_USER = re.compile(
    # The scheme. In those that are excluded, a container, a bucket or a repository precedes the @.
    r"\b(?!(?:abfss?|oci|git|github)://)([a-z][\w+.-]{0,20}://)"
    # User and password. A password that was not quoted may contain a slash, but digits followed by a slash are a port.
    r"(?:[^/?#]*|[^/?#@:\[]*:(?!:|\d*(?:[/?#]|$)).{,200}?)@",
    re.IGNORECASE,
)
_CLOSING = "'`,;:.)]}"
"""Characters that end a sentence, a string or a call rather than a URL."""


def _without_secrets(word: re.Match[str]) -> str:
    """Return a word with the secrets of a URL in it masked. A URL that is masked already is not changed."""
    if "://" not in word[0]:
        return word[0]
    without_user = _USER.sub(r"\1***@", word[0])
    address, _, query = without_user.partition("?")
    secret = query.rstrip(_CLOSING)
    # Without "://" in `address`, the question mark does not belong to the URL, which begins behind it.
    if "://" not in address or not secret or secret.startswith("***"):
        return without_user
    return f"{address}?***{query[len(secret) :]}"


def visible(text: str) -> str:
    r"""Return text with unprintable characters escaped as by `repr`, and with secrets `masked`.

    Unprintable are control characters such as line breaks, marks that change the direction of writing or have no width,
    blanks other than the space, and halves of surrogate pairs, which terminals do not accept.

    Examples
    --------
    >>> print(visible("wind\x1b[31m\nspeed, größe"))
    wind\x1b[31m\nspeed, größe
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return masked(text)
