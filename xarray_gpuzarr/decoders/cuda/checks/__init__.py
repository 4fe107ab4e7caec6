"""Self-checks: small reads with known answers, run on a device before what they check is first used there."""

from xarray_gpuzarr.decoders.cuda.checks.self_checks import check_all

__all__ = ["check_all"]
