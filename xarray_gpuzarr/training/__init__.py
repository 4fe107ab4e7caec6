"""Batches for training: samples and their order, reading ahead, and the datasets that are handed over."""

from xarray_gpuzarr.training.loader import Batches
from xarray_gpuzarr.training.options import batches

__all__ = ["Batches", "batches"]
