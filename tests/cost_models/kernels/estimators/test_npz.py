"""Arrays of models: as numpy reads them, and nothing but plain numbers and texts."""

from pathlib import Path

import numpy as np
import pytest

from foretrace.cost_models.kernels.estimators.npz import read_arrays

ARRAYS = {
    "kind": np.array("trees"),
    "columns": np.array(["rows", "a longer name"]),
    "empty": np.zeros((0, 3)),
    "level": np.arange(300, dtype=np.uint16),
    "small": np.array([-1, 5], np.int8),
    "weights": np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4)),
    "cube": np.arange(24.0).reshape(2, 3, 4),
}


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_arrays_are_read_as_numpy_reads_them(tmp_path: Path, write) -> None:
    write(tmp_path / "some.npz", **ARRAYS)
    found = read_arrays(tmp_path / "some.npz")
    with np.load(tmp_path / "some.npz") as file:
        assert list(found) == list(file)
        for name, array in found.items():
            assert array.dtype == file[name].dtype and array.shape == file[name].shape, name
            assert array.tolist() == file[name].tolist(), name


def test_an_array_of_python_objects_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "some.npz", bad=np.array([print], dtype=object))
    with pytest.raises(ValueError, match="no plain array"):
        read_arrays(tmp_path / "some.npz")


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_a_byte_that_changed_is_noticed(tmp_path: Path, write) -> None:
    path = tmp_path / "some.npz"
    write(path, level=np.random.default_rng(1).random(500))
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 0x55
    path.write_bytes(whole)
    with pytest.raises(ValueError):
        read_arrays(path)
