"""How bytes are asked for, and what is kept: one small record per process, set by `configure` or by the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from xarray_gpuzarr.process.settings import InForce, check_number, given_numbers

_MIB = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """How bytes are requested from stores, and what is kept of what was read.

    Raises
    ------
    OptionError
        A value is of the wrong type or too small.
    """

    max_gap_nbytes: int | None = None
    """Largest gap in bytes between two chunks of a shard that is read rather than skipped. None: 64 KiB in local files;
    elsewhere 32 KiB, or up to 1 MiB where requests would be many."""
    max_request_nbytes: int | None = None
    """Longest request in bytes that covers several chunks. A shard of at most four times this size, decoded, is
    requested whole with its index, unless it is a local file. None: 1 MiB, or 4 MiB for long raw chunks, for bytes
    bound for a GPU, and where it decides about whole shards; in local files 2 MiB, or 8 MiB for raw bytes that are read
    straight into the result and for bytes bound for a GPU."""
    max_requests: int = 64
    """Concurrent requests of this process to one server, or to one store that names none; not to local files."""
    index_cache_nbytes: int = 64 * _MIB
    """Memory in bytes for cached shard indexes. 0: none are cached."""
    cache_nbytes: int = 256 * _MIB
    """Memory in bytes for decoded chunks of which reads took a part, in host memory. 0: none are kept."""
    ahead_nbytes: int = 64 * _MIB
    """Encoded bytes of whole shards, or chunks that are objects, that this process asks for before the dask task that
    decodes them runs; not of local files. 0: each task asks for its own, and keeps its thread while it waits."""

    def __post_init__(self) -> None:
        for name, least in {"max_gap_nbytes": 0, "max_request_nbytes": 1}.items():
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), least)
        check_number("max_requests", self.max_requests, 1)
        check_number("index_cache_nbytes", self.index_cache_nbytes, 0)
        check_number("cache_nbytes", self.cache_nbytes, 0)
        check_number("ahead_nbytes", self.ahead_nbytes, 0)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> FetchOptions:
        """Return the options that ``XARRAY_GPUZARR_<FIELD>`` variables ask for; defaults where there is none.

        Parameters
        ----------
        environ : mapping of str to str
            Sizes may carry a unit: ``67108864``, ``64 MiB``, ``2GB``.

        Raises
        ------
        OptionError
            A variable holds something unusable.
        """
        return cls(**given_numbers((f.name for f in fields(cls)), environ))


in_force: InForce[FetchOptions] = InForce(FetchOptions)


def fetch_options() -> FetchOptions:
    """Return the options in force."""
    return in_force.options or in_force.get()
