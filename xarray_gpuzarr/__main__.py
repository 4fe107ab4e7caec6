"""``python -m xarray_gpuzarr``: the command line."""

from xarray_gpuzarr.cli import main

raise SystemExit(main())
