"""What ``ds.gpuzarr`` shows of itself: where the data will land, and who decodes it, in a few lines."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass

from xarray_gpuzarr.backend.accessor.explain import Row
from xarray_gpuzarr.backend.accessor.explanation import format_nbytes
from xarray_gpuzarr.errors import visible

_LANDING = {
    "cuda": "this engine's are read to the GPU, as CuPy arrays",
    "host": "this engine's are read to the host, as NumPy arrays",
    "workers": "this engine's are read to the GPUs of dask's workers, as CuPy arrays",
    None: 'nothing left to read with engine="gpuzarr"',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A headline and one line for each place where variables are decoded."""

    headline: str
    places: tuple[tuple[str, str], ...]
    """Place, and the variables that are decoded there."""

    def __str__(self) -> str:
        width = max((len(place) for place, _ in self.places), default=0)
        lines = [f"  {place:{width}}  {names}" for place, names in self.places]
        return "\n".join([f"<gpuzarr: {self.headline}>", *lines])

    def to_html(self) -> str:
        """Render for a notebook; colours are inherited, so that it suits light and dark pages."""
        rows = "".join(
            f'<tr><td style="text-align:left;opacity:.7">{html.escape(place)}</td>'
            f'<td style="text-align:left">{html.escape(names)}</td></tr>'
            for place, names in self.places
        )
        return f"<div><strong>gpuzarr</strong>: {html.escape(self.headline)}<table>{rows}</table></div>"


def summarize(rows: Iterable[Row], device: str | None) -> Summary:
    """Group variables by the place where they are decoded.

    Parameters
    ----------
    rows : iterable of Row
    device : "cuda", "cuda:1" (any number), "host", "workers" or None
        Where this engine's variables are read to; None if there are none.
    """
    rows = tuple(rows)
    places: dict[str, list[str]] = {}
    for row in rows:
        places.setdefault(row.where, []).append(row.variable)
    nbytes = format_nbytes(sum(row.decoded_nbytes for row in rows))
    landing = _LANDING.get(device) or f"this engine's are read to GPU {str(device).partition(':')[2]}, as CuPy arrays"
    plural = "variable" if len(rows) == 1 else "variables"
    return Summary(
        headline=f"{len(rows)} {plural}, {nbytes}; {landing}",
        places=tuple((visible(place), visible(", ".join(names))) for place, names in places.items()),
    )
