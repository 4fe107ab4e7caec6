"""`Batches`: what a training loop goes through, epoch after epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Self

from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.training.iterator import BatchIterator, Progress
from xarray_gpuzarr.training.order import Epoch, Order, draw_epoch
from xarray_gpuzarr.training.samples import Samples, require_whole
from xarray_gpuzarr.training.template import Template


class Batches:
    """Batches of samples of a dataset; `xarray_gpuzarr.batches` makes them.

    Each ``iter()`` begins the next epoch. Holds no thread and no open file, and pickles as the dataset does.
    """

    def __init__(self, template: Template, samples: Samples, order: Order, n_ahead: int) -> None:
        self._template = template
        self._samples = samples
        self._order = order
        self._n_ahead = n_ahead
        self._progress = Progress(0, 0)
        self._drawn: tuple[int, Epoch] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_drawn": None, "_progress": self._progress.copy()}

    def __len__(self) -> int:
        """Return the number of batches in an epoch of this rank."""
        return self._order.n_batches(self._samples.n_samples)

    def __iter__(self) -> BatchIterator:
        """Begin the next epoch, or go on where a state says."""
        epoch, batch = self.next_epoch, 0 if self._progress.begun else self._progress.batch
        self._template = self._template.with_whole_read()
        progress = Progress(epoch, batch)
        iterator = BatchIterator(self._epoch(epoch), self._template, self._n_ahead, progress, len(self))
        progress.begun = True
        self._progress = progress
        return iterator

    def __repr__(self) -> str:
        return f"<xarray_gpuzarr.Batches: {len(self)} of {self._order.batch} samples>\n{self.explain()}"

    @property
    def nbytes(self) -> int:
        """Bytes of a full batch."""
        return self._template.nbytes * self._order.batch

    def explain(self) -> str:
        """Say how each variable is read, a line for each, and why if not by one plan for all samples of a read."""
        cuts = self._template.cuts
        width = max(len(str(name)) for name in cuts)
        ways = {str(name): (cut.source.way, cut.source.why) for name, cut in cuts.items()}
        return "\n".join(f"{name:<{width}}  {way}{': ' if why else ''}{why}" for name, (way, why) in ways.items())

    def part(self, number: int, n_parts: int) -> Self:
        """Return the batches that one of several processes of this rank is to read, from the epoch that is next here.

        Parameters
        ----------
        number, n_parts : int
            Every `n_parts`-th read, from this one on: a batch or, with a window, the batches of one.

        Raises
        ------
        OptionError
            The next ``iter()`` would go on in the middle of an epoch.
        """
        found = type(self)(
            self._template, self._samples, replace(self._order, part=number, n_parts=n_parts), self._n_ahead
        )
        if not self._progress.begun and self._progress.batch:
            raise OptionError(
                "a part of an epoch that has begun",
                tried=f"going on at batch {self._progress.batch} in {n_parts} processes",
                found="how far each of them had come is not in the state",
                do="load each process's own state there, or read in one process",
            )
        found.set_epoch(self.next_epoch)
        return found

    @property
    def next_epoch(self) -> int:
        """Number of the epoch of the next ``iter()``."""
        return self._progress.epoch + self._progress.begun

    def set_epoch(self, epoch: int) -> None:
        """Let the next ``iter()`` begin the epoch of a number; without, each begins the one after the last.

        Raises
        ------
        OptionError
            `epoch` is no whole number.
        """
        self._progress = Progress(require_whole("epoch", epoch, 0), 0)

    def state_dict(self) -> dict[str, Any]:
        """Return how far the latest iterator has come, for `load_state_dict` here or in another process.

        Returns
        -------
        dict
            Numbers and text, as JSON has them: the epoch, how many of its batches were handed over, and what the order
            of samples depends on.
        """
        at = self._progress
        is_over = at.begun and at.batch == len(self)
        epoch, batch = (at.epoch + 1, 0) if is_over else (at.epoch, at.batch)
        return {"epoch": epoch, "batch": batch, "of": self._fingerprint(epoch)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next ``iter()`` go on where a state was taken: with the batch after the last that was handed over.

        Parameters
        ----------
        state : mapping
            From `state_dict`, of batches of the same samples in the same order.

        Raises
        ------
        OptionError
            It is none, or of other batches; names what differs.
        """
        epoch, batch, given = _parse_state(state)
        own = self._fingerprint(epoch)
        different = [name for name in own | given if own.get(name) != given.get(name)]
        if different or batch > len(self):
            found = "; ".join(f"{name} is {own.get(name)!r} and was {given.get(name)!r}" for name in different)
            raise OptionError(
                "the state is of other batches",
                tried=f"going on at batch {batch} of epoch {epoch}",
                found=found or f"an epoch has {len(self)} batches",
                do="make the batches as they were when the state was taken, or begin without it",
            )
        self._progress = Progress(epoch, batch)

    def _fingerprint(self, epoch: int) -> dict[str, Any]:
        """Return what the order of samples depends on, and a checksum of that order."""
        return asdict(self._order) | {"samples": self._samples.describe(), "checksum": self._epoch(epoch).checksum}

    def _epoch(self, number: int) -> Epoch:
        if self._drawn is None or self._drawn[0] != number:
            self._drawn = number, draw_epoch(self._samples, self._order, number, self._template.shards)
        return self._drawn[1]


def _parse_state(state: Mapping[str, Any]) -> tuple[int, int, dict[str, Any]]:
    try:
        epoch, batch, given = state["epoch"], state["batch"], dict(state["of"])
        if type(epoch) is int and type(batch) is int and min(epoch, batch) >= 0:
            return epoch, batch, given
    except (KeyError, TypeError, ValueError):
        pass
    raise OptionError(
        "no state of batches",
        tried=f"{state!r}"[:200],
        found='not a mapping with "epoch", "batch" and "of"',
        do="give what state_dict() has returned",
    )
