"""Reads the files of `numpy.savez`, several times as fast as `numpy.load`.

A model has dozens of small arrays. Numpy opens each as a file of its own, and has Python evaluate its header.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

_unpack: Callable[..., bytes] = zlib.decompress
_crc32: Callable[[bytes], int] = zlib.crc32
_BROKEN: tuple[Any, ...] = (zlib.error,)
try:
    from isal import isal_zlib

    _unpack, _crc32, _BROKEN = isal_zlib.decompress, isal_zlib.crc32, (*_BROKEN, isal_zlib.error)
except ImportError:  # some machines have no wheel of it
    pass

_NAME_AT, _NAME_SIZE_AT = 30, 26
"""Offsets in the header of a file in a ZIP archive: of its name, and of the lengths of name and extra field."""
_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(rb"\{'descr': '([<|][biufU]\d+)', 'fortran_order': (True|False), 'shape': \(([\d, ]*)\), \}\s*$")
_SUFFIX = ".npy"


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file by name, read-only; a ValueError for anything but arrays of plain numbers or strings."""
    packed = path.read_bytes()
    with ZipFile(BytesIO(packed)) as archive:
        files = archive.infolist()
    return {file.filename.removesuffix(_SUFFIX): _array(file.filename, _unpacked(packed, file)) for file in files}


def _unpacked(packed: bytes, file: ZipInfo) -> bytes:
    sizes = packed[file.header_offset + _NAME_SIZE_AT : file.header_offset + _NAME_AT]
    begin = file.header_offset + _NAME_AT + int.from_bytes(sizes[:2], "little") + int.from_bytes(sizes[2:], "little")
    data = packed[begin : begin + file.compress_size]
    if file.compress_type != ZIP_STORED:
        try:
            data = _unpack(data, -zlib.MAX_WBITS)
        except _BROKEN as error:
            raise ValueError(f"{file.filename} can't be unpacked: {error}") from None
    if _crc32(data) != file.CRC:
        raise ValueError(f"{file.filename} is damaged")
    return data


def _array(name: str, data: bytes) -> NDArray[Any]:
    begin = len(_MAGIC) + 2
    end = begin + int.from_bytes(data[len(_MAGIC) : begin], "little")
    header = _HEADER.match(data[begin:end])
    if not data.startswith(_MAGIC) or header is None:
        raise ValueError(f"{name} is no plain array")
    shape = [int(size) for size in header[3].replace(b" ", b"").split(b",") if size]
    flat = np.frombuffer(data, header[1].decode(), count=prod(shape), offset=end)
    return flat.reshape(shape, order="F" if header[2] == b"True" else "C")


def finite(arrays: Mapping[str, NDArray[Any]], name: str, *shape: int | None) -> NDArray[np.float64]:
    """An array of finite numbers, of a shape in which None is any size but 0; a ValueError for any other."""
    found = arrays[name]
    fits = found.ndim == len(shape) and all(wanted in (size, None) for size, wanted in zip(found.shape, shape))
    if not fits or not found.size:
        raise ValueError(f"{name} has the shape {found.shape}")
    if found.dtype.kind not in "fiu" or not np.isfinite(found).all():
        raise ValueError(f"{name} does not hold finite numbers")
    return found.astype(np.float64, copy=False)
