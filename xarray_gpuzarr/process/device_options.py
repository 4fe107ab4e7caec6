"""How much memory reads on a GPU may use, from where, and who decodes: one small record, checked when it is made.

Nothing is allocated here. Lanes, batches and the device read the record in force.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, get_args

from xarray_gpuzarr.process.settings import InForce, check_number, given_numbers, unusable, variable

MemoryChoice = Literal["auto", "pool", "async", "current"]
"""Where device memory comes from; see `ResourceOptions.memory`."""

Verify = Literal["first", "all", "off"] | float
"""Which chunks the host decodes as well; see `ResourceOptions.verify`."""

_MIB = 1024**2
_AT_LEAST = {"slot_nbytes": 64 * 1024, "n_slots": 2, "batch_nbytes": 1, "batch_chunks": 1, "scratch_nbytes": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceOptions:
    """Memory that reads on one device may use, and what decides where chunks are decoded.

    Raises
    ------
    OptionError
        A value is of the wrong type, too small, or not among the known ones.
    """

    slot_nbytes: int = 40 * _MIB
    """Length of a pinned staging slot in bytes, at least 64 KiB; short reads have shorter ones. A chunk that is longer
    crosses in pieces."""
    n_slots: int = 3
    """Pinned staging slots of each read, at least 2: one is filled while the device reads another."""
    batch_nbytes: int = 128 * _MIB
    """Decoded bytes that a batch of short chunks has: what the host does for a batch should not count."""
    batch_chunks: int | None = None
    """Chunks that a batch of longer ones has, where memory suffices; batches of short ones have multiples of it. None:
    as many as the device decodes at once: 528, until reads have shown more."""
    scratch_nbytes: int | None = None
    """Device memory in bytes that batches of one read may need besides results. None: three quarters of the device's,
    divided by the reads that run at once, three at least. It is taken in runs that may be a sixteenth longer."""
    memory: MemoryChoice = "auto"
    """RMM resource that device memory is taken from. ``auto``: the caller's current one, unless that is a plain
    `CudaMemoryResource`, whose every allocation stalls the device; then as ``async``. ``async``: a private
    `CudaAsyncMemoryResource`, or as ``pool`` where the driver has none. ``pool``: a private `PoolMemoryResource` that
    grows. ``current``: the caller's current one, whatever it is."""
    calibration: str | None = None
    """Path of a file that says how fast this machine's host and device decode. With it, threads of the host decode
    chunks of a read, or all, where that is sooner. None: what ``gpuzarr doctor --calibrate`` has kept in the cache
    folder for such a GPU and host, else what reads of this process have taken; ``off``: nothing, so that the device
    decodes all that it can."""

    verify: Verify | None = None
    """Which of the chunks that the device decodes the host decodes as well, from the same bytes, to compare. ``first``:
    one of each array in each process. A number from 0 to 1: that share of them, by chance. ``all``, ``off``. Where the
    two differ, the read is repeated on the host, and the array stays there. None: ``first`` on GPUs of an architecture
    that nobody is known to have run this engine on, else ``off``."""

    def __post_init__(self) -> None:
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is None and name in ("batch_chunks", "scratch_nbytes"):
                continue
            check_number(name, value, least)
        if self.memory not in get_args(MemoryChoice):
            raise unusable("memory", f"memory={self.memory!r}", _KNOWN_MEMORY)
        if self.calibration is not None and not isinstance(self.calibration, str):
            raise unusable("calibration", f"calibration={self.calibration!r}", "not a path, as text")
        if not _is_verify(self.verify):
            raise unusable("verify", f"verify={self.verify!r}", "not one of first, all, off, nor a number from 0 to 1")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> ResourceOptions:
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
        given: dict[str, Any] = dict(given_numbers(_AT_LEAST, environ))
        given |= {name: environ[variable(name)] for name in ("memory", "calibration") if variable(name) in environ}
        text = environ.get(variable("verify"))
        if text is not None:
            given["verify"] = text
            with suppress(ValueError):
                given["verify"] = float(text)
        return cls(**given)


def _is_verify(verify: object) -> bool:
    """Say whether something is a `Verify` or None."""
    if isinstance(verify, int | float) and not isinstance(verify, bool):
        return 0 <= verify <= 1
    return verify in (None, "first", "all", "off")


_KNOWN_MEMORY = "the known ones are " + ", ".join(get_args(MemoryChoice))

in_force: InForce[ResourceOptions] = InForce(ResourceOptions)


def resource_options() -> ResourceOptions:
    """Return the options in force."""
    return in_force.get()
