"""Arrays of the simulated device: as strict as CuPy's, and in its memory.

`get`, and everything that needs the values, works on the consumer's stream and waits for no other. So an array whose
maker did not order the consumer after its own stream shows poison.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from helpers.strict_duck import StrictArray, _key, _unwrap

if TYPE_CHECKING:
    from helpers.simulated.simulator import SimulatedDevice

_VIEWS = ("reshape", "ravel", "transpose", "view")


class SimulatedArray(StrictArray):
    """An array, or a view of one, in the memory of a `SimulatedDevice`; that is freed when the last one is garbage."""

    def __init__(self, device: SimulatedDevice, memory: object, elements: np.ndarray) -> None:
        self._device = device
        self._memory = memory
        self.elements = elements

    flags = property(lambda self: self.elements.flags)
    device = property(lambda self: self._device.activate())

    @property
    def host(self) -> np.ndarray:  # type: ignore[override]  # a plain attribute there
        """A copy of the values, as the consumer's stream finds them."""
        return self._device.read(self.elements)

    def get(self) -> np.ndarray:
        return self.host  # no second copy, during which its memory would stay taken

    def fill(self, value: Any) -> None:
        self[...] = value

    def __setitem__(self, key: Any, value: Any) -> None:
        self._device.write(self.elements, _key(key), _unwrap(value))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        result = super().__array_ufunc__(ufunc, method, *inputs, **kwargs)
        if out is None:
            return self._lift(result)
        out[0][...] = result
        return out[0]

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return self._lift(super().__array_function__(func, types, args, kwargs))

    def __getattr__(self, name: str) -> Any:
        if name in _VIEWS:
            return lambda *args, **kwargs: self._apply(lambda array: getattr(array, name)(*args, **kwargs))
        method = super().__getattr__(name)
        return lambda *args, **kwargs: self._lift(method(*args, **kwargs))

    def _apply(self, pick: Callable[[np.ndarray], Any]) -> Any:
        """Return a view where NumPy gives one, without waiting for anything; else a new array."""
        probe = pick(self.elements)
        if isinstance(probe, np.ndarray) and np.may_share_memory(probe, self.elements):
            return SimulatedArray(self._device, self._memory, probe)
        return self._lift(StrictArray(np.asarray(pick(self.host))))

    def _lift(self, what: Any) -> Any:
        """Bring results that were computed on the host to the device."""
        if isinstance(what, list | tuple):
            return type(what)(map(self._lift, what))
        if isinstance(what, StrictArray) and not isinstance(what, SimulatedArray):
            return self._device.place(what.host)
        return what
