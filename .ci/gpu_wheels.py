"""Collect the wheels that a machine with a GPU and without a network lacks; say what travels, and its size.

``python .ci/gpu_wheels.py FOLDER --present freeze.txt``. The wheels are for Linux on x86-64, Python 3.12 and CUDA 13.
``freeze.txt`` names the packages of the other machine, one a line, as ``pip freeze`` does. What it names is left out,
except that packages of RAPIDS and dask travel if their versions differ from those that RAPIDS pins. A name without a
version is taken to fit.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT_MIB = 64.0
EXTRAS = "cuda13,dask-cuda"
TESTS = (
    *("blosc", "cast-value-rs", "h5netcdf", "hypothesis", "imagecodecs", "pytest", "pytest-timeout"),
    *("pytest-xdist", "shtab", "tensorstore", "xbatcher", "zarrs", "zstandard"),
)
"""What the three commands import besides what this package requires."""
UNUSED = {"bokeh", "xyzservices"}
"""Packages that only draw dashboards."""
PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in (39, 35, 34, 31, 28, 27, 24, 17, 5)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux1_x86_64"]
KEPT_MODULES = {"_shared", "_shared_cython", "_imcd", "_zstd", "_blosc", "_lz4", "_zlib", "_deflate", "_snappy"}
"""Modules of imagecodecs that decode here. The others are nine tenths of its wheel."""


def normalized(name):
    """Return a package's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def packages(lines):
    """Return versions by name, of lines such as ``name==version`` or ``name``; an unknown version is empty."""
    pairs = [re.match(r"([\w.-]+)\s*(?:==\s*([\w.!+-]+))?", line.strip()) for line in lines]
    return {normalized(pair[1]): pair[2] or "" for pair in pairs if pair}


def missing(needed, present, pinned):
    """Return those of the needed packages that have to travel."""
    return {
        name: version
        for name, version in needed.items()
        if name not in UNUSED
        if name not in present or (name in pinned and present[name] not in ("", version))
    }


def resolved(constraints):
    """Return versions by name of everything that this package and the three commands need."""
    command = [ROOT / ".venv/bin/uv", "pip", "compile", "-q", "--no-header", "--no-annotate", "-c", constraints]
    command += ["--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_28", "-"]
    wanted = "\n".join([f"{ROOT}[{EXTRAS}]", *TESTS])
    printed = subprocess.run(command, input=wanted, stdout=subprocess.PIPE, text=True, check=True).stdout
    return packages(line for line in printed.splitlines() if "==" in line)


def needed_libraries(files):
    """Return the names of the shared libraries that these files load."""
    command = ["readelf", "-d", *files]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"NEEDED.*\[(.*)\]", printed))


def keep_decoding_modules(folder):
    """Take out of imagecodecs the modules that nothing here calls, and the libraries that only those load."""
    for module in (folder / "imagecodecs").glob("*.so"):
        if module.name.partition(".")[0] not in KEPT_MODULES:
            module.unlink()
    unused = True
    while unused:
        libraries = list((folder / "imagecodecs.libs").iterdir())
        loaded = needed_libraries([*(folder / "imagecodecs").glob("*.so"), *libraries])
        unused = [library for library in libraries if library.name not in loaded]
        for library in unused:
            library.unlink()


def drop_cffi_backend(folder):
    """Take out of zstandard the module that only PyPy loads."""
    for module in (folder / "zstandard").glob("_cffi.*"):
        module.unlink()


def drop_libraries_for_compilers(folder):
    """Take out of blosc what C programs are built with. Its extension module contains the library."""
    for data in folder.glob("*.data"):
        shutil.rmtree(data)


REDUCTIONS = {
    "blosc": drop_libraries_for_compilers,
    "imagecodecs": keep_decoding_modules,
    "zstandard": drop_cffi_backend,
}
"""What is taken out of wheels, by the package's name; each function changes an unpacked wheel."""


def slim(wheel):
    """Take out of a wheel what no test or benchmark loads, if its package is known for that."""
    reduce = REDUCTIONS.get(wheel.name.partition("-")[0])
    if reduce is None:
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        reduce(folder)
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as smaller:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    smaller.write(path, path.relative_to(folder))


def collect(folder, versions):
    """Download wheels into a folder, and build this package's own."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    options = [option for platform in PLATFORMS for option in ("--platform", platform)]
    options += ["--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp", "-d", folder]
    wanted = [f"{name}=={version}" for name, version in versions.items()]
    subprocess.run([*pip, "download", *options, *wanted], check=True)
    subprocess.run([*pip, "wheel", "--no-deps", "-w", folder, ROOT], check=True)
    for wheel in folder.glob("*.whl"):
        slim(wheel)


def clone_mib():
    """Return the size of the files of this clone that git does not ignore, in MiB."""
    command = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0")
    paths = [ROOT / name for name in names if name]
    return sum(path.stat().st_size for path in paths if path.is_file()) / 2**20


def report(folder, clone):
    """Print each wheel with its size, the largest first, the clone's size and the total; return the total in MiB."""
    sizes = {wheel.name: wheel.stat().st_size / 2**20 for wheel in folder.glob("*.whl")}
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        print(f"{sizes[name]:7.2f} MiB  {name}")
    wheels = sum(sizes.values())
    total = wheels + clone
    print(f"{wheels:7.2f} MiB  in {len(sizes)} wheels")
    print(f"{clone:7.2f} MiB  in files of this clone that git does not ignore")
    print(f"{total:7.2f} MiB  in all; at most {LIMIT_MIB:g} MiB may travel")
    if total > LIMIT_MIB:
        print("Add to the file of --present what the other machine has in another way, such as the libraries of a CUDA")
        print("toolkit (nvidia-cublas, nvidia-cufft, ...): a name on a line of its own is enough.")
    return total


def main():
    """Collect and report; return 1 if too much would travel."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--present", type=Path, help="file that names the packages of the other machine")
    options = parser.parse_args()
    if options.present and not options.present.is_file():
        parser.error(f"{options.present} is no file; it has to name the packages of the other machine, one a line")
    options.folder.mkdir(parents=True, exist_ok=True)
    for wheel in options.folder.glob("*.whl"):
        wheel.unlink()
    present = packages(options.present.read_text().splitlines()) if options.present else {}
    pinned = packages((ROOT / ".ci/constraints-cuda13.txt").read_text().splitlines())
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        subprocess.run([sys.executable, ROOT / ".ci/constraints.py", "cuda13"], stdout=constraints, check=True)
        versions = missing(resolved(constraints.name), present, pinned)
    collect(options.folder, versions)
    return int(report(options.folder, clone_mib()) > LIMIT_MIB)


if __name__ == "__main__":
    sys.exit(main())
