"""``python -m xarray_gpuzarr``: runs the command line."""

from xarray_gpuzarr.cli import main

raise SystemExit(main())
