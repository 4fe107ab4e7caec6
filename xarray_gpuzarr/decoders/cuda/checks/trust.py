"""What the device is not trusted with: by its checks, and arrays of which it decoded a chunk to other bytes."""

from __future__ import annotations

import threading

from xarray_gpuzarr.cuda.api import DeviceApi
from xarray_gpuzarr.decoders.cuda.checks import CheckedDevice, remembered_failure
from xarray_gpuzarr.decoders.cuda.decoding.shadows import DifferentValuesError
from xarray_gpuzarr.errors import CudaError
from xarray_gpuzarr.plan.read_plan import PointTarget, Target
from xarray_gpuzarr.process.advice import advise
from xarray_gpuzarr.process.device_options import Checks
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast


class Trust:
    """What is known of each device that this process has used. Safe to ask from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._checked: dict[int, CheckedDevice] = {}
        self._distrusted: dict[ArraySpec, str] = {}
        """Arrays that the host decodes, and why."""

    def why_unusable(self, device: DeviceApi) -> str | None:
        """Say why nothing can be read to a device, which is asked to copy some bytes; None if it can."""
        return self._of(device).why_unusable()

    def fails(self, device: DeviceApi, spec: ArraySpec, target: Target, cast: Cast, checks: Checks) -> bool:
        """Say whether a device is not to be trusted with a read; checks what the read rests on, if nobody has yet.

        Raises
        ------
        CudaError
            It is not, and `checks` is ``"strict"``.
        """
        if checks == "off":
            return False
        why = self._of(device).why_not(spec, cast, points=isinstance(target, PointTarget))
        if why is not None and checks == "strict":
            raise CudaError(
                f"the GPU is not trusted with array '{spec.path}'",
                tried="the self-checks that the read rests on, with checks='strict'",
                found=why,
                do="run gpuzarr doctor, which checks again; checks='warn' lets the host decode",
            )
        return why is not None

    def is_distrusted(self, spec: ArraySpec) -> bool:
        """Say whether a device has decoded a chunk of an array to other bytes than the host."""
        return spec in self._distrusted

    def known_failure(self, device: DeviceApi | None, spec: ArraySpec, cast: Cast) -> str | None:
        """Say which check that reads of an array rest on has failed, or which chunk of it; checks nothing.

        Parameters
        ----------
        device : DeviceApi or None
            None goes by what other processes have found.
        spec : ArraySpec
        cast : Cast
        """
        if spec in self._distrusted:
            return self._distrusted[spec]
        return remembered_failure(spec, cast) if device is None else self._of(device).known_failure(spec, cast)

    def distrust(self, device: DeviceApi, error: DifferentValuesError) -> None:
        """Let the host decode an array from now on, and say so."""
        identity = device.identity
        on = "the GPU" if identity is None else f"{identity.name}, driver {identity.driver}"
        self._distrusted[error.spec] = f"{on} has decoded a chunk to other bytes than the host"
        advise(
            f"other bytes of {error.spec}",
            f"array '{error.spec.path}' is decoded on the host from now on; what was read of it is right",
            found=f"{error.headline} ({on})",
            do=error.do,
        )

    def _of(self, device: DeviceApi) -> CheckedDevice:
        with self._lock:
            checked = self._checked.get(device.index)
            if checked is None or checked.api is not device:
                checked = self._checked[device.index] = CheckedDevice(device)
            return checked
