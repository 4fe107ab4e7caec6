"""Groups of a tree that a pattern names, such as ``/*/sweep_0``.

Matches as `xarray.DataTree.match` does: a pattern that begins with ``/`` from the root, another one from the end of a
path.
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
    """A pattern of groups.

    Parameters
    ----------
    pattern : str
    """

    def __init__(self, pattern: str) -> None:
        self.given = str(NodePath("/") / NodePath(pattern))
        """The group whose name is the pattern itself, if there is one."""
        self._pattern = NodePath(pattern)

    def matches(self, path: str) -> bool:
        """Return whether a group, by its path from the root, is meant."""
        return path == self.given or NodePath(path).match(str(self._pattern))

    def leads_to(self, path: str) -> bool:
        """Return whether a group is meant, or groups below it may be."""
        if not self._pattern.root or f"{self.given}/".startswith(f"{path}/"):
            return True
        parts, of_pattern = NodePath(path).parts, self._pattern.parts
        return len(parts) <= len(of_pattern) and all(map(fnmatchcase, parts, of_pattern))

    def chosen[Group](self, groups: Mapping[str, Group], others: Iterable[str]) -> dict[str, Group]:
        """Return the groups that are meant, those above them, and the root.

        Parameters
        ----------
        groups : mapping from path
        others : iterable of str
            Paths of groups that are not meant, to name if none is.

        Raises
        ------
        OptionError
            None is meant.
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
