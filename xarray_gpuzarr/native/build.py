"""Compiles `loops.c` while hatchling builds a wheel or an editable install; without a C compiler it is left out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from hashlib import sha256
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FLAGS = ("-O3", "-std=gnu11", "-shared", "-fPIC")


class CustomBuildHook(BuildHookInterface):
    """What hatchling calls; see its documentation of build hooks."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  # all are built alike
        """Compile, and let the wheel carry the library; a wheel without it is for every platform."""
        folder = Path(self.root) / "xarray_gpuzarr" / "native"
        source = folder / "loops.c"
        library = folder / f"loops-{sha256(source.read_bytes()).hexdigest()[:12]}.so"
        why = _compile(source, library)
        if why is None:
            build_data["artifacts"].append(f"/{library.relative_to(self.root)}")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        elif os.environ.get("XARRAY_GPUZARR_REQUIRE_COMPILER") == "1":
            raise RuntimeError(f"loops.c was not compiled: {why}")
        else:
            self.app.display_warning(f"xarray_gpuzarr works without compiled loops; they were left out: {why}")


def _compile(source: Path, library: Path) -> str | None:
    """Compile; return why that failed, None if it did not."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return "no C compiler"
    new = library.with_suffix(f".{os.getpid()}")
    done = subprocess.run(  # noqa: S603  # the compiler that the machine names
        [compiler, *_FLAGS, "-o", str(new), str(source)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return done.stderr.strip()[:500]
    new.replace(library)
    return None
