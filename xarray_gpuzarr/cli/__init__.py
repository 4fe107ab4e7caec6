"""The command ``gpuzarr``: parses arguments and runs one of `demo`, `info`, `bench` and `doctor`.

Errors that a user can fix are printed as tried / found / do, without a traceback. The modules of a command are imported
when it runs, so that help is printed at once.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from xarray_gpuzarr import __version__
from xarray_gpuzarr.errors import GpuZarrError, visible

_EXAMPLES = """\
examples:
  gpuzarr demo                               made-up weather: write, read, compare, measure, draw
  gpuzarr demo --source era5.nc              the same with your own file, rewritten as sharded Zarr
  gpuzarr info era5.zarr                     shards, chunks, codecs, bytes, and where they would be decoded
  gpuzarr info s3://bucket/era5.zarr --group 2024 --storage-options anon=true
  gpuzarr doctor                             what this machine has, whether it decodes correctly, how fast
  gpuzarr bench era5.zarr                    compare this engine with xarray's own on your store

in Python:
  xr.open_dataset("era5.zarr", engine="gpuzarr", chunks={})
"""


_PATH_COMPLETION = {
    "bash": "_shtab_compgen_files",
    "zsh": "_files",
    "tcsh": "f",
    "fish": "(__fish_complete_path (commandline -ct))",
    "powershell": "_shtab_powershell_compgen_files",
}
"""Shell -> function that completes paths there. A copy of ``shtab.FILE``, because shtab need not be installed."""


class _Suggested(tuple[str, ...]):
    """Choices that the help and shell completion show. Other values are accepted too, and checked later."""

    __slots__ = ()

    def __contains__(self, value: object) -> bool:
        return True


class _Parser(argparse.ArgumentParser):
    """Parser whose error messages show control characters, which arguments may contain, as escapes."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 after printing a message, which may quote arguments."""
        super().error(visible(message))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments after the name of the program. Those of this process by default.

    Returns
    -------
    int
        The exit status: 0 after success, also if standard output is a pipe that its reader has closed; 1 if values
        differ or something went wrong; 2 if the user has to fix something first.
    """
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()  # raises errors here rather than when Python exits
    except BrokenPipeError:
        # The reader, such as `head`, has read enough. Python flushes standard output again when it exits, so standard
        # output is redirected to a file that takes everything.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):  # rich turns a BrokenPipeError into exit status 1
            raise
    return 0


def _run(argv: Sequence[str] | None) -> int:
    """Parse the arguments and run their command. Return its exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    options = parser().parse_args(arguments or ["--help"])
    from xarray_gpuzarr.cli.terminal import complain, printing_warnings  # noqa: PLC0415  # imports xarray and rich

    # If several requests fail, zarr raises one error, and its event loop logs the others with their tracebacks.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    with printing_warnings():
        try:
            match options.command:
                case "demo":
                    from xarray_gpuzarr.cli.demo import run  # noqa: PLC0415  # imports xarray and rich
                case "info":
                    from xarray_gpuzarr.cli.info import run  # noqa: PLC0415  # imports xarray and rich
                case "bench":
                    from xarray_gpuzarr.cli.bench import run  # noqa: PLC0415  # imports xarray and rich
                case _:  # "doctor"
                    from xarray_gpuzarr.cli.doctor import run  # noqa: PLC0415  # imports xarray and rich
            return run(options)
        except GpuZarrError as err:
            complain(err, type(err))
            return 2


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, which shtab generates shell completions from."""
    parser = _Parser(
        prog="gpuzarr",
        description="Read sharded Zarr through xarray, one task per shard, on a GPU or on the CPU.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = __version__ or "(version unknown: the package is not installed)"
    parser.add_argument("--version", action="version", version=f"gpuzarr {version}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")

    demo = _add_demo(commands)
    info = _add_info(commands)
    bench = _add_bench(commands)
    doctor = _add_doctor(commands)
    for command in (info, bench):
        command.add_argument(
            "--storage-options",
            metavar="KEY=VALUE",
            action="append",
            default=[],
            help="an option of a remote store's fsspec client, such as anon=true; may be given several times",
        )
    for command in (demo, info, doctor):
        command.add_argument(
            "--device",
            default="auto",
            metavar="DEVICE",
            choices=_Suggested(("auto", "cuda", "host")),
            help="auto, cuda, cuda:1 (any number) or host (default: auto)",
        )
    return parser


def _add_demo(commands: Any) -> argparse.ArgumentParser:
    demo: argparse.ArgumentParser = commands.add_parser(
        "demo", help="write a sample, read it with both engines, compare, measure and draw"
    )
    source = demo.add_argument("--source", metavar="FILE", help="any file that xarray can open, instead of the sample")
    folder = demo.add_argument(
        "--dir",
        type=Path,
        default=Path("demo"),
        help="folder for the store and the picture; older ones are replaced (default: demo)",
    )
    demo.add_argument("--size", choices=("normal", "small"), default="normal", help=argparse.SUPPRESS)  # for tests
    _complete_paths(source)
    _complete_paths(folder)
    return demo


def _add_info(commands: Any) -> argparse.ArgumentParser:
    info: argparse.ArgumentParser = commands.add_parser(
        "info", help="show how a store is laid out and where it would be decoded"
    )
    _add_store(info)
    info.add_argument(
        "--gpu-memory",
        metavar="SIZE",
        help='show what tasks take on a GPU with this memory, such as "24 GB" (default: that of the GPU in use)',
    )
    info.add_argument("--all", action="store_true", help="show all variables and groups in full, however many")
    info.add_argument("--json", action="store_true", help="print everything as one JSON document")
    return info


def _add_bench(commands: Any) -> argparse.ArgumentParser:
    bench: argparse.ArgumentParser = commands.add_parser(
        "bench", help="compare this engine with xarray's own on your store"
    )
    _add_store(bench)
    bench.add_argument("--variable", help="array to read (default: the largest that this engine reads)")
    bench.add_argument(
        "--nbytes", default="256 MB", help="read whole shards up to this size, uncompressed (default: 256 MB)"
    )
    bench.add_argument("--rounds", type=int, default=5, help="number of timed reads of each reader (default: 5)")
    return bench


def _add_doctor(commands: Any) -> argparse.ArgumentParser:
    doctor: argparse.ArgumentParser = commands.add_parser(
        "doctor", help="show what this machine has, if it decodes correctly, and how fast"
    )
    form = doctor.add_mutually_exclusive_group()
    document = form.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="write everything as JSON, to standard output or a file"
    )
    form.add_argument("--report", action="store_true", help="print one block of text for a bug report")
    _complete_paths(document)
    return doctor


def _add_store(command: argparse.ArgumentParser) -> None:
    store = command.add_argument("store", metavar="STORE", help="path or URL of a group or an array")
    command.add_argument("--group", default="", help="path of a group or an array inside the store")
    _complete_paths(store)


def _complete_paths(argument: argparse.Action) -> None:
    """Let shells complete the argument as a path. shtab looks for an attribute of this name."""
    vars(argument)["complete"] = _PATH_COMPLETION
