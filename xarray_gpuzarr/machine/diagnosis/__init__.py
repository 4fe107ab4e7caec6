"""`doctor` examines a machine: what it has, whether its GPU decodes correctly, and how fast it is.

Every part is a `Section`: text for people and facts for programs. `examine` is the list of them, `report` puts them
together; `cli.doctor` prints them as they come.
"""

from xarray_gpuzarr.machine.diagnosis.examine import doctor
from xarray_gpuzarr.machine.diagnosis.report import Diagnosis, Section

__all__ = ["Diagnosis", "Section", "doctor"]
