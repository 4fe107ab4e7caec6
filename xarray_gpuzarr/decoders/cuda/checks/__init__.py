"""The engine proves itself on the device it lands on: known answers, before what gives them is first used."""

from xarray_gpuzarr.decoders.cuda.checks.checked import CheckedDevice, check_all, remembered_failure

__all__ = ["CheckedDevice", "check_all", "remembered_failure"]
