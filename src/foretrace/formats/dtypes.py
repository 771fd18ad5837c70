"""Names of dtypes."""

from __future__ import annotations

DTYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "bool": "bool",
    "long int": "int64", "long": "int64", "long long": "int64", "int": "int32", "short int": "int16", "short": "int16",
    "signed char": "int8", "char": "int8", "unsigned char": "uint8", "unsigned short": "uint16",
    "short unsigned int": "uint16", "unsigned int": "uint32", "unsigned long": "uint64", "long unsigned int": "uint64",
    "c10::complex<c10::Half>": "complex32", "c10::complex<float>": "complex64", "c10::complex<double>": "complex128",
    "c10::qint8": "qint8", "c10::quint8": "quint8", "c10::qint32": "qint32",
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
}  # fmt: skip
"""Names of dtypes by what C++ and c10 call them."""

CPP_NAMES = {name: cpp for cpp, name in reversed(DTYPES.items())}
"""The first of C++'s names of each dtype."""


def dtype_name(name: str) -> str:
    """The name PyTorch gives a dtype in Python; empty for what is none.

    >>> dtype_name("c10::BFloat16"), dtype_name("c10::Float8_e4m3fn"), dtype_name("TensorList")
    ('bfloat16', 'float8_e4m3fn', '')
    """
    if "Float8" in name or "Float4" in name:
        return name.removeprefix("c10::").lower()
    return DTYPES.get(name, "")
