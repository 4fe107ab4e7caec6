"""Compiles `loops.c` for wheels and editable installs, if there is a C compiler; only hatchling imports this."""

from __future__ import annotations

import os
import platform
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=off", "-shared", "-fPIC", "-pthread")
_REQUIRED = "XARRAY_GPUZARR_REQUIRE_COMPILER"


class CustomBuildHook(BuildHookInterface):
    """What hatchling calls; see its documentation of build hooks."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and let the wheel carry the library; a wheel without it is for every platform.

        An editable install loads it from where it is compiled. What was compiled of another source is removed.
        """
        folder = Path(self.root) / "xarray_gpuzarr" / "native"
        source = folder / "loops.c"
        library = folder / runpy.run_path(str(folder / "naming.py"))["file_name"](folder)
        why = _compile(source, library)
        for other in folder.glob("loops-*.so"):
            if why is not None or other != library:
                other.unlink()
        if why is None and version != "editable":
            build_data["artifacts"].append(f"/{library.relative_to(self.root).as_posix()}")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform()}"  # no Python ABI: it is called through ctypes
        elif why is not None and os.environ.get(_REQUIRED) == "1":
            raise RuntimeError(f"{_REQUIRED}=1, but loops.c was not compiled: {why}")
        elif why is not None:
            self.app.display_warning(f"xarray_gpuzarr works without compiled loops, which were left out: {why}")


def _compile(source: Path, library: Path) -> str | None:
    """Compile; return why that failed, None if it did not."""
    if sys.platform == "win32":
        return "they are written for Linux and macOS, not for Windows"
    compiler, *options = shlex.split(os.environ.get("CC") or "cc")
    found = shutil.which(compiler)
    if found is None:
        return f"no C compiler {compiler!r}"
    new = library.with_suffix(f".{os.getpid()}")
    command = [found, *options, *_FLAGS, "-o", str(new), str(source)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # the user's compiler
    except OSError as err:
        return f"{found}: {err}"
    if done.returncode:
        new.unlink(missing_ok=True)
        return f"{shlex.join(command)} failed: {done.stderr.strip()[:500]}"
    new.replace(library)
    return None


def _platform() -> str:
    """Return the tag of this machine, or of what cibuildwheel builds for.

    Which Linuxes a library fits, and so the tag that an index takes, is for auditwheel to say.
    """
    found = sysconfig.get_platform().replace("universal2", platform.machine())  # one machine's, whatever Python is for
    return re.sub(r"[-.]", "_", found)
