"""Text as a reader sees it: what a store says is shown, never obeyed.

Names, keys, tags and attributes are whatever somebody wrote into a store. `errors`, `advice`, the tables and the
commands pass all of it through `visible` where it leaves for a terminal or a notebook; records keep it as it is.
"""

from __future__ import annotations


def visible(text: str) -> str:
    r"""Return text in which every character that is not plainly printed is written as `repr` writes it.

    Those are control characters (escape sequences, line breaks), marks that turn the direction of writing or have no
    width, blanks other than the space, and halves of surrogate pairs, which no terminal takes.

    Parameters
    ----------
    text : str

    Examples
    --------
    >>> print(visible("wind\x1b[31m\nspeed, größe"))
    wind\x1b[31m\nspeed, größe
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
