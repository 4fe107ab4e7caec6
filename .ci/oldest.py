"""Print constraints.txt with every library that this package needs at the oldest version that pyproject.toml allows."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
needed = project["dependencies"] + project["optional-dependencies"]["distributed"]
oldest = dict(re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", line).groups() for line in needed)
for line in (ROOT / "constraints.txt").read_text().splitlines():
    name, _, version = line.partition("==")
    print(f"{name}=={oldest.get(name, version)}")
