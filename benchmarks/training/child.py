"""What is done in the process of one loader; `host.child` keeps it open and times it."""

from __future__ import annotations

import warnings
from collections import deque
from dataclasses import replace

import numpy as np
import zarr

from benchmarks.host import child
from benchmarks.host.task import Array, Opened
from benchmarks.runner.fingerprint import Fingerprint
from benchmarks.training.feeds import Feed
from benchmarks.training.loaders import LOADERS


def open_feed(name: str, feed: Feed) -> Fingerprint:
    """Let a loader open a feed and read it once; return what it read."""
    warnings.simplefilter("ignore")
    zarr.config.set(dict(LOADERS[name].settings))
    loader = LOADERS[name]
    epoch = loader.open(feed)

    def check() -> Array:
        if loader.in_order:
            return np.concatenate(list(epoch()))
        numbers, samples = map(np.concatenate, zip(*epoch(), strict=True))
        return samples[np.argsort(numbers)[feed.sample.ravel()]]

    opened = Opened(run=lambda: deque(epoch(), maxlen=0), check=check)
    return child.keep(name, opened, replace(feed, n_batches=2).nbytes)
