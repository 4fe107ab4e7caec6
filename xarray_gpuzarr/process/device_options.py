"""`ResourceOptions`: how much memory reads on a GPU may use, where it comes from, and where chunks are decoded.

A record is checked when it is made. Nothing is allocated here: the CUDA decoder asks `resource_options` for the record
that is in force.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from xarray_gpuzarr.process.settings import (
    ActiveSettings,
    check_number,
    environment_variable,
    numbers_from_environment,
    unusable_error,
)

MemoryChoice = Literal["auto", "pool", "async", "current"]
"""Where device memory comes from; see `ResourceOptions.memory`."""

Verify = Literal["first", "all", "off"]
"""Which chunks the host decodes as well; see `ResourceOptions.verify`."""

Checks = Literal["warn", "strict", "off"]
"""Consequence of a failed self-check; see `ResourceOptions.checks`."""

ShortReads = Literal["auto", "device"]
"""Where short reads are decoded; see `ResourceOptions.little`."""

N_AT_ONCE = 528
"""Number of chunks that a large GPU decodes at once: four on each of the 132 multiprocessors of an H100 or H200. The
four are assumed, not measured."""

PLAIN: Mapping[str, Any] = {"n_batches": 1, "n_reads": 1, "little": "device", "checks": "strict", "verify": "all"}
"""Values that ``engine="plain"`` selects. Reads then take as few paths through the code as possible: one read and one
batch at a time, short reads on the device like all others. A failed self-check is an error, and the host decodes every
chunk as well, to compare."""

_MIB = 1024**2
_MINIMA = {"slot_nbytes": 64 * 1024, "n_slots": 2}
_MINIMA |= dict.fromkeys(("batch_nbytes", "batch_chunks", "n_batches", "n_reads", "scratch_nbytes"), 1)
"""Option -> its smallest value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceOptions:
    """Options of reads on a GPU: the memory that they may use, and where chunks are decoded.

    Raises
    ------
    OptionError
        A value has the wrong type, is too small, or is not a valid choice.
    """

    slot_nbytes: int = 40 * _MIB
    """Size of a pinned staging slot in bytes, at least 64 KiB. Short reads use smaller slots. A chunk that is longer
    than a slot is copied in pieces."""
    n_slots: int = 3
    """Number of pinned staging slots of a read, at least 2: one is filled while another is copied to the device."""
    batch_nbytes: int = 128 * _MIB
    """Decoded bytes in a batch of short chunks. Decoding so many bytes takes the device far longer than preparing the
    batch takes the host."""
    batch_chunks: int = N_AT_ONCE
    """Number of chunks in a batch of long chunks, if memory suffices: as many as the device decodes at once. Batches of
    short chunks have a multiple of it."""
    n_batches: int = 2
    """Number of batches of a read that may be decoded at once while the next one is staged, each on its own stream.
    With 1, fetching, copying and decoding still overlap, but no two batches are decoded at once."""
    n_reads: int = 3
    """Number of reads that run on a device at once, each with its own pinned slots and streams. Other reads wait."""
    scratch_nbytes: int | None = None
    """Device memory in bytes for the batches of one read, not counting its result. None: three quarters of the memory
    of the device, divided by `n_reads`. Allocations are rounded up, and so may exceed it by a sixteenth."""
    memory: MemoryChoice = "auto"
    """RMM memory resource for device memory. ``auto``: the caller's current resource, unless that is a plain
    `CudaMemoryResource`, which stalls the device at each allocation; then as ``async``. ``async``: a private pool of
    the CUDA driver, or as ``pool`` if the driver has none. ``pool``: a private `PoolMemoryResource` that grows.
    ``current``: always the caller's current resource."""
    little: ShortReads = "auto"
    """Where reads of a few chunks ("little" reads) are decoded. ``auto``: up to 30 compressed chunks on the host, which
    is assumed to be faster than the device there. ``device``: always on the device."""
    checks: Checks = "warn"
    """Consequence of a wrong result of the device in one of the self-checks that a read depends on. ``warn``: the host
    decodes. ``strict``: reads raise a `CudaError` that names the check. ``off``: there are no self-checks."""
    verify: Verify | None = None
    """Which chunks the host decodes as well, from the same bytes, to compare the results. ``first``: one chunk of each
    array in each process. ``all``: all chunks. ``off``: none. If results differ, the host repeats the read and decodes
    this array from then on. None: ``first`` on a real GPU, ``off`` on the stand-ins of tests and benchmarks."""

    def __post_init__(self) -> None:
        for name, minimum in _MINIMA.items():
            value = getattr(self, name)
            if value is None and name == "scratch_nbytes":  # None is allowed here, and for `verify` below
                continue
            check_number(name, value, minimum)
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value is None and name == "verify":
                continue
            if value not in choices:
                raise unusable_error(name, f"{name}={value!r}", "valid options: " + ", ".join(choices))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> ResourceOptions:
        """Return the options that ``XARRAY_GPUZARR_<FIELD>`` variables set, with defaults for all others.

        Parameters
        ----------
        environ : mapping of str to str
            Sizes may carry a unit: ``67108864``, ``64 MiB``, ``2GB``. ``XARRAY_GPUZARR_ENGINE`` may be ``plain``.

        Raises
        ------
        OptionError
            The value of a variable is invalid.
        """
        chosen: dict[str, Any] = dict(numbers_from_environment(_MINIMA, environ))
        chosen |= {
            name: environ[environment_variable(name)] for name in _CHOICES if environment_variable(name) in environ
        }
        chosen["engine"] = environ.get(environment_variable("engine"), "usual")
        return cls(**with_engine(chosen))


def with_engine(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with ``engine`` replaced by the options that it stands for. Those in `options` take precedence.

    Raises
    ------
    OptionError
        ``engine`` is neither ``"usual"`` nor ``"plain"``.
    """
    remaining_options = dict(options)
    engine = remaining_options.pop("engine", "usual")
    if engine not in ("usual", "plain"):
        raise unusable_error("engine", f"engine={engine!r}", "valid options: usual, plain")
    return {**PLAIN, **remaining_options} if engine == "plain" else remaining_options


_CHOICES: dict[str, tuple[str, ...]] = {
    "memory": get_args(MemoryChoice),
    "little": get_args(ShortReads),
    "checks": get_args(Checks),
    "verify": get_args(Verify),
}

in_force: ActiveSettings[ResourceOptions] = ActiveSettings(ResourceOptions)


def resource_options() -> ResourceOptions:
    """Return the options in force."""
    # The record is known after the first read, and then the call of `get` is saved.
    return in_force.options or in_force.get()
