"""Cases to time: random calls of realistic shapes, one file per family of kernels."""

from foretrace.platform.cases.case import Case, Ids
from foretrace.platform.cases.draw import Draw
from foretrace.platform.cases.families import FAMILIES, case_number

__all__ = ["FAMILIES", "Case", "Draw", "Ids", "case_number"]
