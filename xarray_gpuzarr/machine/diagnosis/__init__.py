"""`doctor`: examines what a machine has, whether its GPU decodes correctly, and how fast it is.

The result of each part is a `Section`, with text for people and facts for programs. `examine` yields the sections, and
a `Diagnosis` holds all of them. The command ``gpuzarr doctor`` prints each section as soon as it is finished.
"""

from xarray_gpuzarr.machine.diagnosis.examine import doctor
from xarray_gpuzarr.machine.diagnosis.report import Diagnosis, Section

__all__ = ["Diagnosis", "Section", "doctor"]
