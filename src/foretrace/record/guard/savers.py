"""Libraries that save models, metrics and logs, for a sketched script: all is saved, and nothing is kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from foretrace.record.guard.files import found, redirected
from foretrace.record.guard.guard import REFUSED, does_nothing, guard, note, quietly, stands_in_for, trusted
from foretrace.record.guard.side_effects import shown

SAVED = b"a sketch saves nothing\n"
"""What is in the scratch file of a model that a script saved: fake tensors have no values."""


@stands_in_for("torch.utils.data.dataloader:DataLoader._get_iterator")
def _without_workers(original: Any, self: Any) -> Any:
    if not self.num_workers:
        return original(self)
    from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

    note(f"start {self.num_workers} workers of a DataLoader (the script loads its data itself)")
    kept = (self.num_workers, self.timeout)
    self.num_workers, self.timeout = 0, 0
    try:
        return _SingleProcessDataLoaderIter(self)
    finally:
        self.num_workers, self.timeout = kept


@stands_in_for("torch:save", "torch.serialization:save")
def _save(original: Any, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
    if isinstance(f, (str, os.PathLike)):
        place = redirected(f, "torch.save to {}")
        _write(place)
        guard().files.saved[place] = obj
        return
    with quietly():
        try:
            original(obj, f, *args, **kwargs)
        except Exception:  # tensors without values can't be pickled
            f.write(SAVED)
        guard().files.saved[_name(f)] = obj


@stands_in_for("torch:load", "torch.serialization:load")
def _load(original: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
    place = found(f) if isinstance(f, (str, os.PathLike)) else _name(f)
    if place in guard().files.saved:
        return guard().files.saved[place]
    return original(place if isinstance(f, (str, os.PathLike)) else f, *args, **kwargs)


def _name(file: Any) -> str:
    """What a file that is open is remembered by."""
    name = getattr(file, "name", None)
    return found(name) if isinstance(name, (str, os.PathLike)) else f"object {id(file)}"


def _write(place: str) -> None:
    with trusted():
        Path(place).write_bytes(SAVED)


def _saves(action: str, at: int, name: str) -> Callable[..., Any]:
    """A stand-in for what writes a file: there is one afterwards, without a model in it."""

    def stand_in(original: Any, *args: Any, **kwargs: Any) -> None:
        target = args[at] if len(args) > at else kwargs.get(name)
        if isinstance(target, (str, os.PathLike)):
            _write(redirected(target, action))
        elif target is not None and hasattr(target, "write"):
            target.write(SAVED)
        else:
            note(action, type(target).__name__)

    return stand_in


def _saves_folder(action: str, at: int, name: str) -> Callable[..., Any]:
    """The same for what writes a folder."""

    def stand_in(original: Any, *args: Any, **kwargs: Any) -> None:
        target = args[at] if len(args) > at else kwargs.get(name)
        note(action, shown(target), seen=True)
        if isinstance(target, (str, os.PathLike)):
            with quietly():
                Path(target).mkdir(parents=True, exist_ok=True)

    return stand_in


stands_in_for("torch.jit:save", "torch.jit._serialization:save")(_saves("torch.jit.save to {}", 1, "f"))
stands_in_for("torch.jit._script:RecursiveScriptModule.save")(_saves("torch.jit.save to {}", 1, "f"))
stands_in_for("torch.onnx:export")(_saves("torch.onnx.export to {}", 2, "f"))
stands_in_for("torch.export:save")(_saves("torch.export.save to {}", 1, "f"))
stands_in_for(
    "torch.profiler.profiler:_KinetoProfile.export_chrome_trace", "torch.autograd.profiler:profile.export_chrome_trace"
)(_saves("write a profile to {}", 1, "path"))
stands_in_for("safetensors.torch:save_file", "safetensors.torch:save_model", "safetensors.numpy:save_file")(
    _saves("save safetensors to {}", 1, "filename")
)
stands_in_for("transformers.modeling_utils:PreTrainedModel.save_pretrained")(
    _saves_folder("save_pretrained to {}", 1, "save_directory")
)
stands_in_for("diffusers.models.modeling_utils:ModelMixin.save_pretrained")(
    _saves_folder("save_pretrained to {}", 1, "save_directory")
)
stands_in_for("pandas.core.frame:DataFrame.to_parquet")(_saves("write {}", 1, "path"))
stands_in_for("pyarrow.parquet:write_table", "pyarrow.parquet.core:write_table")(_saves("write {}", 1, "where"))
for _checkpoint in ("torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict_saver"):
    stands_in_for(f"{_checkpoint}:save", f"{_checkpoint}:async_save", f"{_checkpoint}:save_state_dict")(
        does_nothing("save a distributed checkpoint to {}", "checkpoint_id")
    )
stands_in_for("torch:Tensor.share_memory_", "torch:UntypedStorage.share_memory_")(lambda original, self, *_: self)


@stands_in_for("torch._C:PyTorchFileWriter")
def _file_writer(original: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
    place = redirected(file, "write the archive {}") if isinstance(file, (str, os.PathLike)) else file
    return original(place, *args, **kwargs)


@stands_in_for("torch._C:PyTorchFileReader")
def _file_reader(original: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
    return original(found(file) if isinstance(file, (str, os.PathLike)) else file, *args, **kwargs)


@stands_in_for("torch:from_file", "torch:UntypedStorage.from_file")
def _from_file(original: Any, filename: Any, shared: Any = False, *args: Any, **kwargs: Any) -> Any:
    place = redirected(filename, "map {} for writing", fresh=False) if shared else found(filename)
    return original(place, shared, *args, **kwargs)


@stands_in_for("_sqlite3:connect", "sqlite3:connect", "sqlite3.dbapi2:connect")
def _database(original: Any, database: Any, *args: Any, **kwargs: Any) -> Any:
    text = os.fsdecode(database)
    if kwargs.get("uri") and text.startswith("file:"):
        if "mode=memory" not in text and "mode=ro" not in text and "immutable=1" not in text:
            note("open the database {}", text)
            text = ":memory:"
    elif text and text != ":memory:":
        text = redirected(text, "open the database {}", fresh=False)
    return original(text, *args, **kwargs)


@stands_in_for("numpy.lib._datasource:open")
def _numpy_open(original: Any, path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
    # It remembers the `open` of the time when numpy was imported.
    place = found(path) if mode.startswith("r") else redirected(path, "open {} for writing")
    return original(place, mode, *args, **kwargs)


@stands_in_for("dbm:open", "dbm.gnu:open", "dbm.ndbm:open", "dbm.dumb:open")
def _key_value(original: Any, file: Any, flag: str = "r", *args: Any) -> Any:
    if flag == "r":
        return original(file, flag, *args)
    place = redirected(file, "open the database {}", fresh=flag == "n")
    with quietly():
        return original(place, flag, *args)


@stands_in_for("h5py:File.__init__", "h5py._hl.files:File.__init__")
def _hdf(original: Any, self: Any, name: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
    place = name
    if isinstance(name, (str, bytes, os.PathLike)):
        place = found(name) if mode == "r" else redirected(name, "open {} for writing", fresh=mode in ("w", "w-", "x"))
    original(self, place, mode, *args, **kwargs)


@stands_in_for("logging:FileHandler._open")
def _open_log(original: Any, self: Any) -> Any:
    note("log to {}", Path(self.baseFilename).name)
    with quietly():
        return original(self)


@stands_in_for("logging:FileHandler.emit")
def _log(original: Any, self: Any, record: Any) -> None:
    # One that was opened before the sketch would write to the user's own file.
    stream = self.stream
    if stream is None or guard().files.is_safe(found(getattr(stream, "name", self.baseFilename))):
        original(self, record)
    else:
        note("log to {}", Path(self.baseFilename).name)


class _Unwritten:
    """A writer of metrics that writes none."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        folder = args[0] if args else kwargs.get("log_dir") or kwargs.get("logdir") or "runs"
        note("write metrics to {}", shown(folder))
        self.log_dir = self.logdir = shown(folder)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None

    def __enter__(self) -> _Unwritten:
        return self

    def __exit__(self, *failure: object) -> None:
        pass


stands_in_for("torch.utils.tensorboard:SummaryWriter", "tensorboardX:SummaryWriter")(
    lambda original, *args, **kwargs: _Unwritten(*args, **kwargs)
)
stands_in_for(
    "wandb:init", "wandb:log", "mlflow:start_run", "mlflow:log_metric", "mlflow:log_metrics", "mlflow:log_params"
)(lambda original, *args, **kwargs: _Unwritten(f"{original.__module__.partition('.')[0]} ({original.__name__})"))


def _asks_for_database(args: tuple[Any, ...]) -> tuple[str, object]:
    text = os.fsdecode(args[0])
    harmless = text in ("", ":memory:") or text.startswith("file:") or guard().files.is_safe(text)
    return ("", "") if harmless else ("open the database {}", text)


REFUSED["sqlite3.connect"] = _asks_for_database
