"""What opening a store gives, errors and warnings included."""

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

from xarray_gpuzarr import MetadataError, NoGroupError


def outcome(open_it: Callable[[], Any]) -> tuple[Any, Counter[tuple[type[Warning], str]]]:
    """Return what opening gives, or the error's type and words; and how often each warning came.

    Of an error that names a damaged document or an absent group, type and words are those of what caused it.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = open_it()
        except (MetadataError, NoGroupError) as err:
            result = type(err.__cause__), str(err.__cause__)
        except Exception as err:  # noqa: BLE001  # of any kind: it is compared
            result = type(err), str(err)
    return result, Counter((w.category, str(w.message)) for w in caught)
