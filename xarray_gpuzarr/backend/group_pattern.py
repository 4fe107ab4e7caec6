"""`GroupPattern`: selects groups of a tree as `xarray.DataTree.match` does.

A pattern that begins with ``/`` matches from the root, any other from the end of a path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from xarray.core.treenode import NodePath

from xarray_gpuzarr.errors import OptionError


def is_pattern(group: str) -> bool:
    """Return whether the name of a group has a wildcard in it: ``*``, ``?`` or ``[``."""
    return any(mark in group for mark in "*?[")


class GroupPattern:
    """A pattern of groups, such as ``/*/sweep_0``."""

    def __init__(self, pattern: str) -> None:
        self.as_path = str(NodePath("/") / NodePath(pattern))
        """Path of the group whose name is the pattern itself, if there is one."""
        self._pattern = NodePath(pattern)

    def matches(self, path: str) -> bool:
        """Return whether a group, by its path from the root, matches."""
        return path == self.as_path or NodePath(path).match(str(self._pattern))

    def leads_to(self, path: str) -> bool:
        """Return whether a group matches, or groups below it may."""
        if not self._pattern.root or f"{self.as_path}/".startswith(f"{path}/"):
            return True
        parts, of_pattern = NodePath(path).parts, self._pattern.parts
        return len(parts) <= len(of_pattern) and all(map(fnmatchcase, parts, of_pattern))

    def chosen[Group](self, groups: Mapping[str, Group], others: Iterable[str]) -> dict[str, Group]:
        """Return the groups that match, those above them, and the root.

        If none matches, an `OptionError` names `groups` and `others`.
        """
        chosen_paths = set[str]()
        for path in filter(self.matches, groups):
            chosen_paths.update(map(str, (NodePath(path), *NodePath(path).parents)))
        if not chosen_paths:
            known = sorted({*groups, *others})
            raise OptionError(
                "no group matches",
                tried=f"group={str(self._pattern)!r}",
                found=f"groups that were looked at: {', '.join(known)}",
                do="give a pattern of whole names: from the root if it begins with /, else from the end of a path",
            )
        return {path: group for path, group in groups.items() if path in chosen_paths}
