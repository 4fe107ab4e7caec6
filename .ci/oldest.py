"""Print constraints.txt with every library that this package needs at the oldest version that pyproject.toml allows.

Test libraries whose newest release wants newer ones are those of constraints-oldest.txt.
"""

import re
import tomllib
from pathlib import Path

HERE = Path(__file__).parent


def pins(name):
    """Read a file of ``name==version`` lines."""
    return dict(line.split("==") for line in (HERE / name).read_text().splitlines())


project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
needed = project["dependencies"] + project["optional-dependencies"]["distributed"]
oldest = dict(re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", line).groups() for line in needed)
newest = pins("constraints.txt")
wanted = {name: oldest.get(name, version) for name, version in newest.items()} | pins("constraints-oldest.txt")
for name, version in wanted.items():
    print(f"{name}=={version}")
