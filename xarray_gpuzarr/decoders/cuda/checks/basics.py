"""Checks of what all reads rest on: copies to the device and back, moves on it, and checksums there."""

from __future__ import annotations

import zlib

import numpy as np

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.checksum import checksum, finish
from xarray_gpuzarr.cuda.launch import move
from xarray_gpuzarr.cuda.resources import Workspace
from xarray_gpuzarr.decoders.cuda.checks.known import content
from xarray_gpuzarr.decoders.cuda.checks.trial import Check, compare, download, sent

COPY = "copies"
"""Name of the check without which nothing works."""


def _copies(workspace: Workspace) -> int:
    data = content("noise", 100_003)

    def run(workspace: Workspace) -> int:
        memory = sent(workspace, data)
        compare(download(workspace, memory.address, (len(data),), np.dtype("u1")), np.frombuffer(data, "u1"))
        return len(data)

    return workspace.run(run)


def _moves(workspace: Workspace) -> int:
    data, first, nbytes = content("noise", 80_000), np.array([1, 801, 1602, 2003]), np.array([777, 800, 3, 77_000])
    to = np.array([16, 1029, 2048, 2064])

    def run(workspace: Workspace) -> int:
        source, target = sent(workspace, data), sent(workspace, bytes(len(data)))
        rows = (first + source.address, to + target.address, nbytes)
        table = sent(workspace, np.array(rows, np.uint64).tobytes())
        move(workspace.api, workspace.copy, table=table.address, n=len(first), max_nbytes=int(nbytes.max()))
        expected = np.zeros(len(data), np.uint8)
        for start, place, length in zip(first, to, nbytes, strict=True):
            expected[place : place + length] = np.frombuffer(data, "u1")[start : start + length]
        compare(download(workspace, target.address, expected.shape, expected.dtype), expected)
        return int(nbytes.sum())

    return workspace.run(run)


def _sums(workspace: Workspace) -> int:
    data, first, nbytes = content("noise", 70_000), np.array([0, 1, 778, 803]), np.array([1, 777, 0, 69_000])

    def run(workspace: Workspace) -> int:
        source = sent(workspace, data)
        columns = np.array((first + source.address, nbytes, 0 * nbytes), np.uint64)
        table = sent(workspace, columns.tobytes())
        result = Address(table.address + columns[:2].nbytes)
        longest = int(nbytes.max())
        checksum(
            workspace.api, workspace.copy, "crc32", table=table.address, n=len(first), max_nbytes=longest, result=result
        )
        sums = finish("crc32", download(workspace, result, first.shape, np.dtype("u8")))
        compare(sums, np.array([zlib.crc32(data[a : a + n]) for a, n in zip(first, nbytes, strict=True)], "u4"))
        return int(nbytes.sum())

    return workspace.run(run)


COPIES, MOVES, SUMS = Check(COPY, _copies), Check("moves", _moves), Check("crc32", _sums)
