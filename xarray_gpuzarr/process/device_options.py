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
        A value has the wrong type, is too small, or is not a valid choice.
    """

    slot_nbytes: int = 40 * _MIB
    """Size of a pinned staging slot in bytes, at least 64 KiB; short reads use smaller ones. A longer chunk is copied
    in pieces."""
    n_slots: int = 3
    """Pinned staging slots of each read, at least 2: one is filled while the device reads another."""
    batch_nbytes: int = 128 * _MIB
    """Decoded bytes in a batch of short chunks. Large enough that the host's work for a batch does not matter."""
    batch_chunks: int | None = None
    """Chunks in a batch of long chunks, if memory suffices; batches of short chunks have a multiple of it. None: as
    many as the device decodes at once, which is taken to be 528 until reads have shown more."""
    scratch_nbytes: int | None = None
    """Device memory in bytes for the batches of one read, besides its result. None: three quarters of the device's
    memory, divided by the reads that run at once (at least three). Allocations may be a sixteenth larger."""
    memory: MemoryChoice = "auto"
    """RMM resource for device memory. ``auto``: the caller's current one, unless that is a plain `CudaMemoryResource`,
    which stalls the device at each allocation; then like ``async``. ``async``: a private `CudaAsyncMemoryResource`, or
    like ``pool`` if the driver does not support it. ``pool``: a private `PoolMemoryResource` that grows. ``current``:
    always the caller's current one."""
    calibration: str | None = None
    """Path of a file that records how fast host and device decode on this machine. The host then decodes some or all
    chunks of a read if that is quicker. None: the calibration that ``gpuzarr doctor --calibrate`` saved for this GPU
    and host, otherwise the times of earlier reads in this process. ``off``: the device decodes everything it can."""

    verify: Verify | None = None
    """Which chunks the host decodes as well as the device, from the same bytes, to compare. ``first``: one chunk of
    each array in each process. A number from 0 to 1: a random share of this size. ``all`` or ``off``. If the two
    differ, the read is repeated on the host, which then decodes this array. None: ``first`` on GPU architectures for
    which no run of this engine is known, otherwise ``off``."""

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


_KNOWN_MEMORY = "valid options: " + ", ".join(get_args(MemoryChoice))

in_force: InForce[ResourceOptions] = InForce(ResourceOptions)


def resource_options() -> ResourceOptions:
    """Return the options in force."""
    return in_force.get()
