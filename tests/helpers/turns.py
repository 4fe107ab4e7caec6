"""What reads of short chunks do with their turn, as a function that is called within it."""

from collections.abc import Callable
from threading import get_ident

from xarray_gpuzarr.process.crew import Crew


def in_turn[Result](crew: Crew, most: int, compute: Callable[[], Result]) -> Result:
    """Return what `compute` does while it is the turn of the calling thread, as the host decoder has it."""
    takes_turn = get_ident() not in crew.turns
    try:
        if takes_turn:
            crew.begin_turn(lambda: most)
        return compute()
    finally:
        if takes_turn:
            crew.turns.pop(get_ident(), None)
            crew.over.ring()
