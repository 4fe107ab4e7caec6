"""Read what auditwheel says of a wheel: it fits every Linux whose C library is glibc 2.28 or newer."""

import json
import re
import sys
from pathlib import Path

found = json.loads(Path(sys.argv[1]).read_text())
tag = found["overall_tag"]
minor = re.fullmatch(r"manylinux_2_(\d+)_\w+", tag)
assert minor, f"fits no manylinux: {tag}"
assert int(minor[1]) <= 28, f"wants a newer C library: {tag}, {found['versioned_symbols']}"
assert not found["external_libs"], found["external_libs"]
print(f"the wheel fits {tag}")
