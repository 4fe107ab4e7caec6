"""`Accessor`, the base of all accessors, and what they say about variables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from xarray import Dataset, Variable

from xarray_gpuzarr.backend.accessor.array_in_memory import array_in_memory
from xarray_gpuzarr.backend.accessor.explain import Row, explain_variables, lazy_array_of
from xarray_gpuzarr.backend.accessor.explanation import Explanation, summarize
from xarray_gpuzarr.backend.accessor.host_copies import HostCopy
from xarray_gpuzarr.decoders.choice import missing_for_cuda
from xarray_gpuzarr.decoders.host.chunk_cache import kept_chunks
from xarray_gpuzarr.decoders.protocol import Device
from xarray_gpuzarr.native.library import why_absent


class Accessor(ABC):
    """Base of the accessors: their text and HTML say where variables are decoded."""

    @property
    @abstractmethod
    def device(self) -> Device | None:
        """Where this engine's variables live, or will once they are read."""

    @abstractmethod
    def explain(self) -> Explanation:
        """Return a table of how each variable is stored, where it is decoded, and why."""

    def __repr__(self) -> str:
        return str(summarize(self.explain().rows, self.device))

    def _repr_html_(self) -> str:
        return summarize(self.explain().rows, self.device).to_html()


def explanation(rows: Iterable[Row], device: str | None) -> Explanation:
    """Return rows as an explanation, with a note about the device that this engine's variables are read to."""
    rows = tuple(rows)
    if not rows:
        return Explanation(rows=rows, note="There are no variables here. xarray.open_datatree opens the groups below.")
    if device is None:
        is_loaded = any("in memory" in row.where + row.why for row in rows)
        note = "Nothing here is left to read" if is_loaded else "Nothing here is read"
        return Explanation(rows=rows, note=f'{note} by engine="gpuzarr".')
    missing = missing_for_cuda() if device == "host" else []
    why = why_absent() if any(row.where == "host" for row in rows) else None
    notes = [
        *([f"CUDA cannot be used here; missing: {', '.join(missing)}."] if missing else []),
        *([f"Compiled loops are not in use: {why}."] if why else []),
        kept_chunks() if device == "host" else "",
    ]
    return Explanation(rows=rows, note=" ".join(filter(None, notes)))


def dataset_rows(dataset: Dataset, prefix: str = "") -> tuple[Row, ...]:
    """Describe the variables of a dataset, data variables first."""
    order = [*dataset.data_vars, *dataset.coords]
    return explain_variables({name: dataset.variables[name] for name in order}, prefix)


def device_of(variables: Mapping[Any, Variable]) -> Device | None:
    """Return where variables of this engine live: on a GPU if any does, None if there are none."""
    devices = set[Device]()
    for variable in variables.values():
        lazy = lazy_array_of(variable)
        if lazy is not None:
            of_workers: Device = "cuda" if lazy.device == "workers" else lazy.device
            devices.add("host" if isinstance(lazy, HostCopy) else of_workers)
        elif hasattr(array_in_memory(variable), "__cuda_array_interface__"):
            devices.add("cuda")
    on_device = devices - {"host"}
    return "cuda" if len(on_device) > 1 else next(iter(on_device or devices), None)
