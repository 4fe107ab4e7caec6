"""`Accessor`, the base of the accessors, with the rows, the device and the explanation that they have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from xarray import Dataset, Variable

from xarray_gpuzarr.backend.accessor.array_in_memory import array_in_memory
from xarray_gpuzarr.backend.accessor.explanation import Explanation, summarize
from xarray_gpuzarr.backend.accessor.host_copies import HostCopy
from xarray_gpuzarr.backend.accessor.variable_rows import Row, explain_variables, lazy_array_of
from xarray_gpuzarr.decoders.choice import missing_for_cuda
from xarray_gpuzarr.decoders.host.chunk_cache import describe_cache
from xarray_gpuzarr.decoders.protocol import Device
from xarray_gpuzarr.native.library import why_absent


class Accessor(ABC):
    """Base of the accessors. Their text and HTML show where variables are decoded."""

    @property
    @abstractmethod
    def device(self) -> Device | None:
        """Device that this engine's variables are on, or are read to; None if there are none."""

    @abstractmethod
    def explain(self) -> Explanation:
        """Return a table of how each variable is stored, where it is decoded, and why."""

    def __repr__(self) -> str:
        return str(summarize(self.explain().rows, self.device))

    def _repr_html_(self) -> str:
        return summarize(self.explain().rows, self.device).to_html()


def explanation_of(rows: Iterable[Row], device: str | None) -> Explanation:
    """Return rows with a note below them. `device` is that of this engine's variables; None if there are none."""
    rows = tuple(rows)
    if not rows:
        return Explanation(rows=rows, note="There are no variables here. xarray.open_datatree opens the groups below.")
    if device is None:
        # Rows say "in memory" of loaded arrays, of persisted blocks, and of what is computed from these.
        is_loaded = any("in memory" in row.where + row.why for row in rows)
        note = "Nothing here is left to read" if is_loaded else "Nothing here is read"
        return Explanation(rows=rows, note=f'{note} by engine="gpuzarr".')
    missing = missing_for_cuda() if device == "host" else []
    why_no_loops = why_absent() if any(row.where == "host" for row in rows) else None
    notes = []
    if missing:
        notes.append(f"CUDA cannot be used here; missing: {', '.join(missing)}.")
    if why_no_loops:
        notes.append(f"Compiled loops are not in use: {why_no_loops}.")
    if device == "host":
        notes.append(describe_cache())
    return Explanation(rows=rows, note=" ".join(filter(None, notes)))


def dataset_rows(dataset: Dataset, prefix: str = "") -> tuple[Row, ...]:
    """Return a row for each variable of a dataset, data variables first. `prefix` comes before their names."""
    order = [*dataset.data_vars, *dataset.coords]
    return explain_variables({name: dataset.variables[name] for name in order}, prefix)


def device_of(variables: Iterable[Variable]) -> Device | None:
    """Return the device of this engine's variables; None if there are none.

    If a variable is on a GPU, or is read to one, that GPU is returned. For several GPUs, and for those of dask's
    workers, it is "cuda".
    """
    devices = set[Device]()
    for variable in variables:
        lazy = lazy_array_of(variable)
        if lazy is not None:
            if isinstance(lazy, HostCopy):
                devices.add("host")
            elif lazy.device == "workers":
                devices.add("cuda")  # each worker's own GPU
            else:
                devices.add(lazy.device)
        elif hasattr(array_in_memory(variable), "__cuda_array_interface__"):
            devices.add("cuda")
    gpus = devices - {"host"}
    if len(gpus) > 1:
        return "cuda"
    return next(iter(gpus or devices), None)
