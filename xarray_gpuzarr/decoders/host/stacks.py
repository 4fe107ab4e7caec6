"""What the host decoder does with chunks that crops share: each is decoded once, and placed wherever it is wanted."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.decoders.host.blocks import Block
from xarray_gpuzarr.decoders.host.boxes import BoxBlock
from xarray_gpuzarr.decoders.host.job import Workspace
from xarray_gpuzarr.decoders.host.native_rows import Boxes
from xarray_gpuzarr.native import address
from xarray_gpuzarr.plan.output_boxes import Placement
from xarray_gpuzarr.plan.stack import StackTarget


class StackBlock(BoxBlock):
    """One plan whose chunks give several boxes of the output each; one that gives a single box is treated as ever."""

    @cached_property
    def placed(self) -> Placement:
        """Where each stored chunk goes that gives a single box."""
        alone, group = self.job.alone, self.plan.row[:, 0]
        return Placement(
            whole=alone.whole.take(group), contiguous=alone.contiguous.take(group), out_at=alone.out_at.take(group)
        )

    def given(self) -> Boxes:
        """Return the boxes that chunks give."""
        target, row = self.plan.target, self.plan.all_row
        assert isinstance(target, StackTarget)
        numbers, first = target.boxes(row), np.concatenate([[0], target.n_boxes(row).cumsum()])
        return Boxes(at=address(numbers), first=first, kept=numbers)

    def _boxes(self, group: int) -> list[list[int]]:
        stack = self.job.stack
        return stack.rows[stack.bounds[group] : stack.bounds[group + 1]]

    def place_chunk(self, workspace: Workspace, chunk: npt.NDArray[Any], row: int) -> None:
        """Bring what is wanted of a decoded chunk to all its places."""
        sample = chunk[None]
        for numbers in self._boxes(self.rows[row][0]):
            self.place_box(workspace, self.wanted(sample, numbers), numbers)

    def fill(self, numbers: list[int]) -> None:
        """Write the fill value to all boxes of a group."""
        for box in self._boxes(numbers[0]):
            super().fill(box)

    def fill_missing(self) -> None:
        """Write the fill value to missing chunks, whose boxes may lie anywhere."""
        Block.fill_missing(self)
