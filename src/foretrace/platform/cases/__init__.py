"""Cases to time: random calls of realistic shapes, one file per family of kernels."""

from foretrace.platform.cases.case import Case, Ids

__all__ = ["Case", "Ids"]
