"""How much memory reads on a GPU may use, from where, and who decodes: one small record, checked when it is made.

Nothing is allocated here. Lanes, batches and the device read the record in force.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from xarray_gpuzarr.process.settings import InForce, check_number, given_numbers, unusable, variable

MemoryChoice = Literal["auto", "pool", "async", "current"]
"""Where device memory comes from; see `ResourceOptions.memory`."""

Verify = Literal["first", "all", "off"]
"""Which chunks the host decodes as well; see `ResourceOptions.verify`."""

Checks = Literal["warn", "strict", "off"]
"""Consequence of a failed self-check; see `ResourceOptions.checks`."""

Little = Literal["auto", "device"]
"""Where short reads are decoded; see `ResourceOptions.little`."""

N_AT_ONCE = 528
"""Chunks that a large GPU decodes at once: four on each of 132 multiprocessors. Assumed, not measured."""

PLAIN: Mapping[str, Any] = {"n_batches": 1, "n_reads": 1, "little": "device", "checks": "strict", "verify": "all"}
"""The most cautious value of each: what ``engine="plain"`` stands for."""

_MIB = 1024**2
_AT_LEAST = {"slot_nbytes": 64 * 1024, "n_slots": 2}
_AT_LEAST |= dict.fromkeys(("batch_nbytes", "batch_chunks", "n_batches", "n_reads", "scratch_nbytes"), 1)


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
    batch_chunks: int = N_AT_ONCE
    """Chunks in a batch of long chunks, if memory suffices; batches of short chunks have a multiple of it. As many as
    the device decodes at once."""
    n_batches: int = 2
    """Batches of one read that may be decoded while the next one is staged, each on a stream of its own. 1: fetching,
    copying and decoding still overlap, decoding of two batches does not."""
    n_reads: int = 3
    """Reads of a device that run at once, each with pinned slots and streams of its own; others wait."""
    scratch_nbytes: int | None = None
    """Device memory in bytes for the batches of one read, besides its result. None: three quarters of the device's
    memory, divided by `n_reads`. Allocations may be a sixteenth larger."""
    memory: MemoryChoice = "auto"
    """RMM resource for device memory. ``auto``: the caller's current one, unless that is a plain `CudaMemoryResource`,
    which stalls the device at each allocation; then like ``async``. ``async``: a private pool of the driver's, or like
    ``pool`` if the driver has none. ``pool``: a private `PoolMemoryResource` that grows. ``current``:
    always the caller's current one."""
    little: Little = "auto"
    """Where reads of a few chunks are decoded. ``auto``: up to 30 on the host, which is assumed to be sooner than the
    device, unless they are not compressed. ``device``: on the device."""
    checks: Checks = "warn"
    """Consequence of a wrong answer that the device has given to one of the self-checks that a read rests on. ``warn``:
    the host decodes. ``strict``: reads raise `CudaError`, which names the check. ``off``: nothing is checked."""
    verify: Verify | None = None
    """Which chunks the host decodes as well as the device, from the same bytes, to compare. ``first``: one chunk of
    each array in each process. ``all`` or ``off``. If the two differ, the read is repeated on the host, which then
    decodes this array. None: ``first``, on a real GPU."""

    def __post_init__(self) -> None:
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is None and name == "scratch_nbytes":
                continue
            check_number(name, value, least)
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value is None and name == "verify":
                continue
            if value not in choices:
                raise unusable(name, f"{name}={value!r}", "valid options: " + ", ".join(choices))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> ResourceOptions:
        """Return the options that ``XARRAY_GPUZARR_<FIELD>`` variables ask for; defaults where there is none.

        Parameters
        ----------
        environ : mapping of str to str
            Sizes may carry a unit: ``67108864``, ``64 MiB``, ``2GB``. ``XARRAY_GPUZARR_ENGINE`` may be ``plain``.

        Raises
        ------
        OptionError
            A variable holds something unusable.
        """
        chosen: dict[str, Any] = dict(given_numbers(_AT_LEAST, environ))
        chosen |= {name: environ[variable(name)] for name in _CHOICES if variable(name) in environ}
        return cls(**with_engine({"engine": environ.get(variable("engine"), "usual"), **chosen}))


def with_engine(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with what ``engine`` among them stands for; others among them come first.

    Raises `OptionError` if it is neither ``"usual"`` nor ``"plain"``.
    """
    others = dict(options)
    engine = others.pop("engine", "usual")
    if engine not in ("usual", "plain"):
        raise unusable("engine", f"engine={engine!r}", "valid options: usual, plain")
    return {**PLAIN, **others} if engine == "plain" else others


_CHOICES: dict[str, tuple[str, ...]] = {
    "memory": get_args(MemoryChoice),
    "little": get_args(Little),
    "checks": get_args(Checks),
    "verify": get_args(Verify),
}

in_force: InForce[ResourceOptions] = InForce(ResourceOptions)


def resource_options() -> ResourceOptions:
    """Return the options in force."""
    return in_force.options or in_force.get()
