"""Cases to time: random calls of realistic shapes, one file per family of kernels."""

from foretrace.platform.cases.case import Case, Ids
from foretrace.platform.cases.draw import Draw
from foretrace.platform.cases.families import FAMILIES, HELD_OUT, MEASURED, case_number, check_families

__all__ = ["FAMILIES", "HELD_OUT", "MEASURED", "Case", "Draw", "Ids", "case_number", "check_families"]
