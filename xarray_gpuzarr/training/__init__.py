"""Batches for training: which samples there are, in which order, who reads them ahead, and what comes of them."""

from xarray_gpuzarr.training.loader import Batches
from xarray_gpuzarr.training.options import batches

__all__ = ["Batches", "batches"]
