"""`Batches`: the batches of a dataset, epoch after epoch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from xarray import IndexVariable

from xarray_gpuzarr.backend.accessor.explanation import TableText, format_nbytes, html_table
from xarray_gpuzarr.backend.lazy_array import as_caller_of
from xarray_gpuzarr.decoders.protocol import StreamOf
from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.training.iterator import BatchIterator, Budget, Progress
from xarray_gpuzarr.training.order import Epoch, Order, draw_epoch, require_batches
from xarray_gpuzarr.training.samples import Samples, require_whole
from xarray_gpuzarr.training.sources import Way, in_c_order
from xarray_gpuzarr.training.template import Template

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_TITLES = ("variable", "read")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesRow:
    """How the samples of one variable are read."""

    variable: str
    way: Way
    """``"one plan"``, the fast way, ``"crop by crop"``, ``"dask"`` or ``"memory"``."""
    why: str
    """Why not with one plan; empty where that says itself."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BatchesExplanation(TableText):
    """A row for each variable, rendered as a table by `str`, `repr`, rich and Jupyter."""

    rows: tuple[BatchesRow, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from xarray_gpuzarr.backend.accessor import tables  # noqa: PLC0415  # imports rich

        table = tables.headed_table(gap=2)
        for title in _TITLES:
            table.add_column(title, overflow="fold")
        for row in self.rows:
            table.add_row(*map(tables.cell, _cells(row)))
        yield table

    def _repr_html_(self) -> str:
        return html_table(_TITLES, map(_cells, self.rows))


def _cells(row: BatchesRow) -> list[list[str]]:
    return [[row.variable], [f"{row.way}: {row.why}" if row.why else row.way]]


class Batches:
    """Batches of samples of a dataset, made by `xarray_gpuzarr.batches`.

    Each ``iter()`` starts the next epoch. It holds no threads or open files, and can be pickled if the dataset can.
    """

    def __init__(
        self, template: Template, samples: Samples, order: Order, budget: Budget, *, follows_ranks: bool
    ) -> None:
        self._template = template
        self._samples = samples
        self._order = order
        self._budget = budget
        self._follows_ranks = follows_ranks
        self._progress = Progress(order, 0, 0)
        self._drawn: tuple[int, Epoch] | None = None

    def __getstate__(self) -> dict[str, Any]:
        self.order  # noqa: B018  # a worker of a DataLoader has no process group to ask
        return vars(self) | {"_drawn": None, "_progress": replace(self._progress)}

    def __len__(self) -> int:
        """Return the number of batches in an epoch of this rank."""
        return self.order.n_batches(self._samples.n_samples)

    def __iter__(self) -> BatchIterator:
        """Begin the next epoch, or go on where a state says."""
        return self.begin(self.next_epoch, self.next_batch)

    def begin(self, epoch: int, batch: int = 0, stream_of: StreamOf | None = None) -> BatchIterator:
        """Begin an epoch, or go on in it, after `batch` of its batches.

        Given a GPU's number, `stream_of` returns the handle of the stream on which batches are used there; CuPy's
        current one if left out. An `OptionError` says that a state was loaded, and that this process has become another
        rank since; or that its rank has no batch.
        """
        order, before = self.order, self._progress.order
        if batch and order != before:
            raise OptionError(
                "batches go on in an epoch of another rank",
                tried=f"batch {batch} of epoch {epoch} on rank {order.rank} of {order.world_size}",
                found=f"this was rank {before.rank} of {before.world_size} when the state was loaded",
                do="load the state after torch.distributed.init_process_group, or give rank= and world_size=",
            )
        as_caller = as_caller_of(self._template.lazies, stream_of)
        with as_caller():  # what is not cut is read now
            whole = self._template.whole.copy().load()
            for variable in whole.variables.values():
                if not isinstance(variable, IndexVariable):
                    variable.data = in_c_order(variable.data)
            self._template = replace(self._template, whole=whole)
        n_ahead = self._budget.n_ahead(self._template, order, self._samples)
        progress = Progress(order, epoch, batch)
        drawn, n_batches = self._epoch(epoch, order), len(self)
        iterator = BatchIterator(drawn, self._template, n_ahead, progress, n_batches=n_batches, as_caller=as_caller)
        progress.begun = True
        self._progress = progress
        return iterator

    def __repr__(self) -> str:
        return f"<xarray_gpuzarr.Batches: {len(self)} of {self._order.batch} samples>\n{self.explain()}"

    @property
    def order(self) -> Order:
        """Order of the samples. If no rank was given, it is that which this process has now."""
        distributed: Any = sys.modules.get("torch.distributed")  # whoever has set it up has imported it
        if self._follows_ranks and distributed and distributed.is_available() and distributed.is_initialized():
            order = replace(self._order, rank=distributed.get_rank(), world_size=distributed.get_world_size())
            if order != self._order:
                require_batches(order, self._samples)
                self._order = order
        return self._order

    @property
    def nbytes(self) -> int:
        """Bytes of a full batch."""
        return self._template.nbytes * self._order.batch

    def explain(self) -> BatchesExplanation:
        """Return how each variable is read, and why if not with one plan for all samples of a read."""
        cuts = self._template.cuts.items()
        rows = (BatchesRow(variable=str(name), way=cut.source.way, why=cut.source.why) for name, cut in cuts)
        return BatchesExplanation(rows=tuple(rows))

    def part(self, number: int, n_parts: int) -> Self:
        """Return the batches that one of several processes of this rank is to read, from the first epoch on.

        Those are of every `n_parts`-th read, from `number` on: a batch or, with a window, the batches of one.
        """
        order = replace(self.order, part=number, n_parts=n_parts)
        return type(self)(self._template, self._samples, order, self._budget, follows_ranks=False)

    @property
    def next_epoch(self) -> int:
        """Number of the epoch of the next ``iter()``."""
        return self._progress.epoch + self._progress.begun

    @property
    def next_batch(self) -> int:
        """How many batches of it the next ``iter()`` leaves out, because a state was loaded."""
        return 0 if self._progress.begun else self._progress.batch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next ``iter()`` starts; by default it is the one after the last.

        Raises
        ------
        OptionError
            `epoch` is no whole number.
        """
        self._progress = Progress(self.order, require_whole("epoch", epoch, 0), 0)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the latest iterator, for `load_state_dict` here or in another process.

        Returns
        -------
        dict
            Numbers and text, as JSON has them: the epoch, how many of its batches were handed over, and what the order
            of samples depends on.
        """
        at = self._progress
        if at.begun and at.batch == at.order.n_batches(self._samples.n_samples):
            return self.state_at(at.epoch + 1, 0)
        return self.state_at(at.epoch, at.batch, at.order if at.batch else None)

    def state_at(self, epoch: int, batch: int, order: Order | None = None) -> dict[str, Any]:
        """Return the state of an epoch of which so many batches were handed over; that may be all.

        `order` is that of the epoch, if it is not what an epoch that begins now has.
        """
        return {"epoch": epoch, "batch": batch, "of": self._fingerprint(epoch, order or self.order)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next ``iter()`` go on where a state was taken: with the batch after the last that was handed over.

        Parameters
        ----------
        state : mapping
            From `state_dict`, of batches of the same samples in the same order.

        Raises
        ------
        OptionError
            `state` is invalid, or of different batches; the message lists the differences.
        """
        try:
            epoch, batch, saved = state["epoch"], state["batch"], dict(state["of"])
            is_valid = type(epoch) is int and type(batch) is int and min(epoch, batch) >= 0
        except (KeyError, TypeError, ValueError):
            is_valid = False
        if not is_valid:
            raise OptionError(
                "not a state of batches",
                tried=f"{state!r}"[:200],
                found='not a mapping with "epoch", "batch" and "of"',
                do="give what state_dict() has returned",
            )
        own = self._fingerprint(epoch, self.order)
        different = [name for name in own | saved if own.get(name) != saved.get(name)]
        if different or batch > len(self):
            said = ((name, *(self._said(name, of.get(name)) for of in (own, saved))) for name in different)
            differences = "; ".join(f"{name} is {is_now} and was {was}" for name, is_now, was in said)
            raise OptionError(
                "the state is of other batches",
                tried=f"going on at batch {batch} of epoch {epoch}",
                found=differences or f"an epoch has {len(self)} batches",
                do="make the batches as they were when the state was taken, or begin without it",
            )
        self._progress = Progress(self.order, epoch, batch)

    def _fingerprint(self, epoch: int, order: Order) -> dict[str, Any]:
        """Return what the order of samples depends on, and a checksum of that order."""
        return asdict(order) | {"samples": self._samples.describe(), "checksum": self._epoch(epoch, order).checksum}

    def _said(self, name: str, value: object) -> str:
        """Return how a message shows what the order of samples depends on: a window as bytes, which it is given in."""
        if name == "window" and type(value) is int:
            return f"{value} samples ({format_nbytes(value * self._template.nbytes)})"
        return repr(value)

    def _epoch(self, number: int, order: Order) -> Epoch:
        if self._drawn is None or self._drawn[0] != number or self._drawn[1].order != order:
            self._drawn = number, draw_epoch(self._samples, order, number, self._template.shards)
        return self._drawn[1]
