"""`Batches`: the batches of a dataset, epoch after epoch.

It knows how far the latest epoch has come, which `Batches.state_dict` returns. `BatchIterator` hands over the batches
of one epoch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, NoReturn, Self

from xarray import IndexVariable

from xarray_gpuzarr.backend.accessor.explanation import format_nbytes
from xarray_gpuzarr.backend.lazy_array import as_caller_of
from xarray_gpuzarr.decoders.protocol import StreamOf
from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.training.explanation import BatchesExplanation, BatchesRow
from xarray_gpuzarr.training.iterator import BatchIterator, Budget, Progress
from xarray_gpuzarr.training.order import Epoch, Order, draw_epoch, require_batches
from xarray_gpuzarr.training.samples import Samples, require_whole
from xarray_gpuzarr.training.sources import in_c_order
from xarray_gpuzarr.training.template import Template


class Batches:
    """Batches of samples of a dataset, made by `xarray_gpuzarr.batches`.

    Each ``iter()`` starts the next epoch. Instances hold no threads or open files, and can be pickled if the dataset
    can.
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
        self._latest_epoch: tuple[int, Epoch] | None = None
        """Number and samples of the epoch that was drawn last."""

    def __getstate__(self) -> dict[str, Any]:
        # The property updates the rank. A worker of a DataLoader cannot do that, since it has no process group.
        self.order  # noqa: B018
        # The copy counts its own progress. The latest epoch is not pickled, since its order may be long: the copy draws
        # it again.
        return vars(self) | {"_latest_epoch": None, "_progress": replace(self._progress)}

    def __len__(self) -> int:
        """Return the number of batches in an epoch of this rank, or of this part of it; see `part`."""
        return self.order.n_batches(self._samples.n_samples)

    def __iter__(self) -> BatchIterator:
        """Begin the next epoch, or continue where the state that was loaded says."""
        return self.begin(self.next_epoch, self.next_batch)

    def __getitem__(self, number: Any) -> NoReturn:
        """Raise `TypeError`: batches come in the order of an epoch.

        A ``DataLoader`` of PyTorch that is given this object asks for batches by number.
        """
        raise TypeError(
            f"batches have no numbers\n  tried: batch {number!r}\n  found: an iterable\n"
            "  do:    iterate over it; for PyTorch, DataLoader(IterableBatches(batches), batch_size=None), "
            "see xarray_gpuzarr.torch"
        )

    def begin(self, epoch: int, n_done: int = 0, stream_of: StreamOf | None = None) -> BatchIterator:
        """Begin an epoch, or continue in one.

        Parameters
        ----------
        epoch : int
            Number of the epoch.
        n_done : int
            Number of batches that are left out, because they were handed over earlier.
        stream_of : callable, optional
            Returns the handle of the stream on which batches are used, given the number of a GPU. By default it is
            CuPy's current stream.

        Raises
        ------
        OptionError
            A state was loaded and this process has become another rank since, or its rank has no batch.
        """
        order = self.order
        earlier_order = self._progress.order
        if n_done and order != earlier_order:
            raise OptionError(
                "batches cannot continue in an epoch of another rank",
                tried=f"batch {n_done} of epoch {epoch} on rank {order.rank} of {order.world_size}",
                found=f"this was rank {earlier_order.rank} of {earlier_order.world_size} when the state was loaded",
                do="load the state after torch.distributed.init_process_group, or give rank= and world_size=",
            )
        # Inside the contexts that `as_caller` makes, any thread reads for the GPU and stream of this one, or for the
        # stream that `stream_of` returns.
        as_caller = as_caller_of(self._template.lazies, stream_of)
        with as_caller():
            self._load_uncut()
        n_ahead = self._budget.n_ahead(self._template, order, self._samples)
        progress = Progress(order, epoch, n_done, begun=True)
        iterator = BatchIterator(
            self._epoch(epoch, order), self._template, n_ahead, progress, n_batches=len(self), as_caller=as_caller
        )
        self._progress = progress
        return iterator

    def _load_uncut(self) -> None:
        """Load the variables that come along unchanged, in C order."""
        uncut = self._template.uncut.copy().load()
        for variable in uncut.variables.values():
            if not isinstance(variable, IndexVariable):  # its data, which pandas holds, cannot be set
                variable.data = in_c_order(variable.data)
        self._template = replace(self._template, uncut=uncut)

    def __repr__(self) -> str:
        return f"<xarray_gpuzarr.Batches: {len(self)} batches of {self._order.batch} samples>\n{self.explain()}"

    @property
    def order(self) -> Order:
        """Order of the samples, with the present rank of this process if no rank was given."""
        distributed: Any = sys.modules.get("torch.distributed")  # imported by the program that initialises it
        if self._follows_ranks and distributed and distributed.is_available() and distributed.is_initialized():
            order = replace(self._order, rank=distributed.get_rank(), world_size=distributed.get_world_size())
            if order != self._order:
                require_batches(order, self._samples)
                self._order = order
        return self._order

    @property
    def nbytes(self) -> int:
        """Size of a full batch in bytes, without variables that come along unchanged."""
        return self._template.nbytes * self._order.batch

    def explain(self) -> BatchesExplanation:
        """Return how the samples of each variable are read, and why, for those that are not read with one plan."""
        rows = []
        for name, cut in self._template.cuts.items():
            rows.append(BatchesRow(variable=str(name), way=cut.source.way, why=cut.source.why))
        return BatchesExplanation(rows=tuple(rows))

    def part(self, number: int, n_parts: int) -> Self:
        """Return the batches that one of `n_parts` processes of this rank reads, from the first epoch on.

        They are those of every `n_parts`-th read, beginning with read `number`. A read is one batch or, with a window,
        all batches of the window.
        """
        order = replace(self.order, part=number, n_parts=n_parts)
        # Worker processes have no process group of PyTorch to follow: their rank is that of this process.
        return type(self)(self._template, self._samples, order, self._budget, follows_ranks=False)

    @property
    def next_epoch(self) -> int:
        """Number of the epoch that the next ``iter()`` starts."""
        if self._progress.begun:
            return self._progress.epoch + 1
        return self._progress.epoch

    @property
    def next_batch(self) -> int:
        """Number of batches of `next_epoch` that the next ``iter()`` leaves out, because a state was loaded."""
        return 0 if self._progress.begun else self._progress.n_done

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next ``iter()`` starts. By default it is the one after the latest.

        Raises
        ------
        OptionError
            `epoch` is not a whole number of at least 0.
        """
        self._progress = Progress(self.order, require_whole("epoch", epoch, 0), 0)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the latest iterator, for `load_state_dict` in this process or another one.

        Returns
        -------
        dict
            The number of the epoch, how many of its batches were handed over, and everything that the order of samples
            depends on. It can be stored as JSON.
        """
        progress = self._progress
        if progress.begun and progress.n_done == progress.order.n_batches(self._samples.n_samples):
            return self.state_at(progress.epoch + 1, 0)
        # An epoch of which nothing was handed over may begin anew, in the order of the rank that this process has now.
        return self.state_at(progress.epoch, progress.n_done, progress.order if progress.n_done else None)

    def state_at(self, epoch: int, n_done: int, order: Order | None = None) -> dict[str, Any]:
        """Return the state at a position.

        Parameters
        ----------
        epoch : int
            Number of the epoch.
        n_done : int
            Number of its batches that were handed over, possibly all of them.
        order : Order, optional
            Order of the epoch, if it differs from that of an epoch that would begin now.
        """
        return {"epoch": epoch, "batch": n_done, "of": self._fingerprint(epoch, order or self.order)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next ``iter()`` continue where a state was taken, with the batch after the last one handed over.

        Parameters
        ----------
        state : mapping
            What `state_dict` returned for batches of the same samples in the same order.

        Raises
        ------
        OptionError
            `state` is invalid, or belongs to different batches; then the message lists the differences.
        """
        epoch, n_done, saved = _parse_state(state)
        own = self._fingerprint(epoch, self.order)
        differences = []
        for name in own | saved:
            if own.get(name) != saved.get(name):
                own_text = self._format_setting(name, own.get(name))
                saved_text = self._format_setting(name, saved.get(name))
                differences.append(f"{name} is {own_text} and was {saved_text}")
        if differences or n_done > len(self):
            raise OptionError(
                "the state is of other batches",
                tried=f"going on at batch {n_done} of epoch {epoch}",
                found="; ".join(differences) or f"an epoch has {len(self)} batches",
                do="make the batches as they were when the state was taken, or begin without it",
            )
        self._progress = Progress(self.order, epoch, n_done)

    def _fingerprint(self, epoch: int, order: Order) -> dict[str, Any]:
        """Return everything that the order of samples depends on, a checksum of that order, and the variables."""
        return asdict(order) | {
            "samples": self._samples.describe(),
            "checksum": self._epoch(epoch, order).checksum,
            "variables": self._template.variable_names(),
            "stack": None if self._template.channels is None else str(self._template.channels.dim),
        }

    def _format_setting(self, name: str, value: object) -> str:
        """Return the text of an item of the fingerprint in a message. A window is shown in bytes as well."""
        if name == "window" and type(value) is int:
            return f"{value} samples ({format_nbytes(value * self._template.nbytes)})"
        return repr(value)

    def _epoch(self, number: int, order: Order) -> Epoch:
        """Draw an epoch, or return the one that was drawn last if it is the same."""
        if self._latest_epoch is not None:
            latest_number, latest = self._latest_epoch
            if latest_number == number and latest.order == order:
                return latest
        epoch = draw_epoch(self._samples, order, number, self._template.shard_numbers)
        self._latest_epoch = number, epoch
        return epoch


def _parse_state(state: Mapping[str, Any]) -> tuple[int, int, dict[str, Any]]:
    """Return the epoch, the number of its batches that were handed over, and the fingerprint of a state.

    Raises `OptionError` if the state is invalid.
    """
    try:
        epoch, n_done, fingerprint = state["epoch"], state["batch"], dict(state["of"])
        is_valid = type(epoch) is int and type(n_done) is int and min(epoch, n_done) >= 0
    except (KeyError, TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise OptionError(
            "not a state of batches",
            tried=f"{state!r}"[:200],
            found='not a mapping with "epoch", "batch" and "of"',
            do="give what state_dict() has returned",
        )
    return epoch, n_done, fingerprint
