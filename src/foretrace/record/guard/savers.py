"""Stand-ins for libraries that save models, metrics and logs: their files go to the scratch folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from foretrace.record.guard.files import found, redirected
from foretrace.record.guard.guard import (
    AS_BASE,
    REFUSED,
    Inert,
    applies,
    does_nothing,
    elsewhere,
    guard,
    note,
    quietly,
    stands_in_for,
    trusted,
)
from foretrace.record.guard.side_effects import shown

SAVED = b"a sketch saves nothing\n"
"""The content of the scratch file of a model that a script saved: fake tensors have no values."""


@stands_in_for("torch.utils.data.dataloader:DataLoader._get_iterator")
def _without_workers(original: Any, self: Any) -> Any:
    if not self.num_workers:
        return original(self)
    from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

    class WithoutWorkers(_SingleProcessDataLoaderIter):
        def _next_data(self) -> Any:
            with elsewhere():
                return super()._next_data()

    note(f"start {self.num_workers} workers of a DataLoader (the script loads its data itself)")
    before = (self.num_workers, self.timeout)
    self.num_workers, self.timeout = 0, 0
    try:
        return WithoutWorkers(self)
    finally:
        self.num_workers, self.timeout = before


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
    """The key of an open file among what was saved."""
    name = getattr(file, "name", None)
    return found(name) if isinstance(name, (str, os.PathLike)) else f"object {id(file)}"


def _write(place: str) -> None:
    with trusted():
        Path(place).write_bytes(SAVED)


SAFETENSORS = {"float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
               "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3",
               "float8_e5m2": "F8_E5M2"}  # fmt: skip
"""The name of each dtype in a file of safetensors."""


def _write_zeros(place: str, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file with names, dtypes and shapes of tensors, whose values are a hole: zeros, and no blocks.

    So a script finds the model that it has saved.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        kind = SAFETENSORS[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": kind, "shape": [*tensor.shape], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with trusted(), open(place, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(file.tell() + end)


@stands_in_for("safetensors.torch:save_file")
def _save_safetensors(original: Any, tensors: Any, filename: Any, metadata: Any = None) -> None:
    place = redirected(filename, "save safetensors to {}")
    try:
        _write_zeros(place, tensors, metadata)
    except (AttributeError, KeyError, OSError, TypeError):  # something else than tensors, or no room
        _write(place)


def _saves_pretrained(weights: str, save_config: Callable[[Any, Any], None]) -> Callable[..., Any]:
    """A stand-in for ``save_pretrained`` of a model: it saves the configuration, and weights without values."""

    def stand_in(original: Any, self: Any, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        note("save_pretrained to {}", shown(save_directory), seen=True)
        with quietly():
            Path(save_directory).mkdir(parents=True, exist_ok=True)
            with suppress(Exception):  # what is not there says so when it is loaded
                save_config(self, save_directory)
                _write_zeros(redirected(Path(save_directory, weights), ""), self.state_dict())

    return stand_in


def _save_transformers_config(model: Any, folder: Any) -> None:
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)


def _saves(action: str, at: int, name: str) -> Callable[..., Any]:
    """A stand-in for a function that writes a file, which holds no model."""

    def stand_in(original: Any, *args: Any, **kwargs: Any) -> None:
        target = args[at] if len(args) > at else kwargs.get(name)
        if isinstance(target, (str, os.PathLike)):
            _write(redirected(target, action))
        elif target is not None and hasattr(target, "write"):
            target.write(SAVED)
        else:
            note(action, type(target).__name__)

    return stand_in


def _redirects(action: str, at: int, name: str, mode: str = "") -> Callable[..., Any]:
    """A stand-in for a function that opens a file: one for writing is opened in the scratch folder.

    The mode is the argument after the file, unless it is always the same one.
    """

    def stand_in(original: Any, *args: Any, **kwargs: Any) -> Any:
        file = args[at] if len(args) > at else kwargs.get(name)
        if not isinstance(file, (str, bytes, os.PathLike)):
            return original(*args, **kwargs)
        named = next((kwargs[key] for key in ("mode", "flag", "shared") if key in kwargs), "r")
        how = mode or (args[at + 1] if len(args) > at + 1 else named)
        reads = not how or how in ("r", "rb", "rt")
        place: str | bytes = found(file) if reads else redirected(file, action, fresh=str(how)[0] in "nwx")
        place = os.fsencode(place) if isinstance(file, bytes) else place
        with quietly():
            if len(args) > at:
                return original(*args[:at], place, *args[at + 1 :], **kwargs)
            return original(*args, **{**kwargs, name: place})

    return stand_in


for _stand_in, *_names in (
    (_saves("torch.jit.save to {}", 1, "f"), "torch.jit:save", "torch.jit._serialization:save",
     "torch.jit._script:RecursiveScriptModule.save", "torch.jit._script:ScriptModule.save"),
    (_saves("torch.onnx.export to {}", 2, "f"), "torch.onnx:export"),
    (_saves("torch.export.save to {}", 1, "f"), "torch.export:save"),
    (_saves("write a profile to {}", 1, "path"), "torch.profiler.profiler:_KinetoProfile.export_chrome_trace",
     "torch.profiler.profiler:_KinetoProfile.export_memory_timeline",
     "torch.autograd.profiler:profile.export_chrome_trace", "torch._C._autograd:_ProfilerResult.save"),
    (_saves("save safetensors to {}", 1, "filename"), "safetensors.torch:save_model", "safetensors.numpy:save_file",
     "safetensors:serialize_file"),
    (_saves("write a snapshot of memory to {}", 0, "filename"), "torch.cuda.memory:_dump_snapshot"),
    (_saves_pretrained("diffusion_pytorch_model.safetensors", lambda model, folder: model.save_config(folder)),
     "diffusers.models.modeling_utils:ModelMixin.save_pretrained"),
    (_saves_pretrained("model.safetensors", _save_transformers_config),
     "transformers.modeling_utils:PreTrainedModel.save_pretrained"),
    (_saves("write {}", 1, "path"), "pandas.core.frame:DataFrame.to_parquet"),
    (_saves("write {}", 1, "where"), "pyarrow.parquet:write_table", "pyarrow.parquet.core:write_table"),
    (_saves("write {}", 1, "dest"), "pyarrow.feather:write_feather"),
    (_saves("write {}", 1, "output_file"), "pyarrow.csv:write_csv"),
    (_saves("write {}", 1, "base_dir"), "pyarrow.dataset:write_dataset"),
    (_redirects("write the archive {}", 0, "file", "w"), "torch._C:PyTorchFileWriter"),
    (_redirects("", 0, "file", "r"), "torch._C:PyTorchFileReader"),
    (_redirects("map {} for writing", 0, "filename"), "torch:UntypedStorage.from_file"),
    # It remembers the `open` of the time when numpy was imported.
    (_redirects("open {} for writing", 0, "path"), "numpy.lib._datasource:open"),
    (_redirects("open the database {}", 0, "file"), "dbm:open", "dbm.gnu:open", "dbm.ndbm:open", "dbm.dumb:open"),
    (_redirects("open {} for writing", 1, "name"), "h5py:File.__init__", "h5py._hl.files:File.__init__"),
    (_redirects("open {} for writing", 0, "name", "w"), "h5py.h5f:create"),
    (_redirects("write {}", 0, "filename", "w"), "cv2:VideoWriter"),
    (_redirects("open {} for writing", 0, "path"), "pyarrow:OSFile", "pyarrow.lib:OSFile", "pyarrow:memory_map",
     "pyarrow.lib:memory_map"),
    (_redirects("open {} for writing", 0, "source", "w"), "pyarrow:output_stream", "pyarrow.lib:output_stream"),
    (_redirects("write {}", 0, "sink", "w"), "pyarrow.ipc:new_file", "pyarrow.ipc:new_stream"),
    (_redirects("write {}", 1, "where", "w"), "pyarrow.parquet:ParquetWriter.__init__",
     "pyarrow.parquet.core:ParquetWriter.__init__"),
    (_saves("save a LightGBM model to {}", 1, "filename"), "lightgbm.basic:Booster.save_model"),
    (_redirects("open the database {}", 0, "database", "a"), "duckdb:connect"),
    (_redirects("write {}", 1, "file", "w"),
     "polars.dataframe.frame:DataFrame.write_parquet", "polars.dataframe.frame:DataFrame.write_csv",
     "polars.dataframe.frame:DataFrame.write_ipc", "polars.dataframe.frame:DataFrame.write_json",
     "polars.dataframe.frame:DataFrame.write_ndjson"),
):  # fmt: skip
    stands_in_for(*_names)(_stand_in)
for _checkpoint in ("torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict_saver"):
    stands_in_for(f"{_checkpoint}:save", f"{_checkpoint}:async_save", f"{_checkpoint}:save_state_dict")(
        does_nothing("save a distributed checkpoint to {}", "checkpoint_id")
    )


@stands_in_for("torch.export:export")
def _export(original: Any, mod: Any, *args: Any, **kwargs: Any) -> Inert:
    note("export a model")
    return Inert(module=lambda *_, **__: mod)


stands_in_for("torch:Tensor.share_memory_", "torch:UntypedStorage.share_memory_")(lambda original, self, *_: self)


@stands_in_for("cv2:imwrite", "cv2:imwritemulti")
def _write_image(original: Any, filename: Any, *args: Any, **kwargs: Any) -> bool:
    _write(redirected(filename, "write {}"))
    return True


@stands_in_for("tensordict.base:TensorDictBase.memmap", "tensordict.base:TensorDictBase.memmap_")
def _map_tensors(original: Any, self: Any, prefix: Any = None, *_: Any, **__: Any) -> Any:
    note("map tensors to files in {}", shown(prefix or "a temporary folder"))
    return self


stands_in_for("torch.cuda.memory:_record_memory_history")(lambda original, *_, **__: None)


@stands_in_for("torch.profiler.profiler:ExecutionTraceObserver.register_callback")
def _trace_execution(original: Any, self: Any, output_file_path: Any) -> Any:
    note("write an execution trace to {}", shown(output_file_path))
    return self


@stands_in_for("torch:from_file")
def _from_file(original: Any, filename: Any, shared: Any = None, size: Any = 0, **kwargs: Any) -> Any:
    import torch

    if shared:
        note("map {} for writing", shown(filename), seen=True)
    return torch.zeros(size or 0, **{key: value for key, value in kwargs.items() if key in ("dtype", "device")})


@stands_in_for("lmdb:open", "lmdb:Environment", "lmdb.cpython:Environment", "lmdb.cpython:open")
def _map_database(original: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("readonly"):
        return original(found(path), *args, **kwargs)
    if os.path.exists(path):  # such databases are large: read where they are
        note("open the database {}", shown(path), seen=True)
        return original(found(path), *args, **{**kwargs, "readonly": True, "lock": False})
    return original(redirected(path, "open the database {}"), *args, **kwargs)


@stands_in_for("_sqlite3:connect", "sqlite3:connect", "sqlite3.dbapi2:connect")
def _database(original: Any, database: Any, *args: Any, **kwargs: Any) -> Any:
    if len(args) < 5:  # the fifth is the class of the connection
        kwargs["factory"] = _connection_class(kwargs.get("factory"))
    return original(_database_file(os.fsdecode(database), bool(kwargs.get("uri"))), *args, **kwargs)


def _database_file(name: str, is_uri: bool) -> str:
    """The database to open in place of one: a scratch file, or one in memory."""
    if is_uri and name.startswith("file:"):
        if "mode=memory" in name or "mode=ro" in name or "immutable=1" in name:
            return name
        note("open the database {}", name)
        return ":memory:"
    return redirected(name, "open the database {}", fresh=False) if name and name != ":memory:" else name


NAMES_A_DATABASE = re.compile(
    r"""\b(attach(?:\s+database)?|vacuum(?:\s+\w+)?\s+into)\s+('(?:[^']|'')*'|"[^"]*"|\?|[:@$]\w+)""", re.IGNORECASE
)
"""Statements of SQL that open another database, and its name: a text or a parameter."""


def _with_scratch_files(sql: str, parameters: Any = ()) -> tuple[str, Any]:
    """A statement of SQL and its parameters, with scratch files for the databases that it names."""
    if not (applies() and NAMES_A_DATABASE.search(sql)):
        return sql, parameters
    given: Any = dict(parameters) if isinstance(parameters, dict) else list(parameters)

    def replace(found: re.Match[str]) -> str:
        name = found[2]
        if name[0] in "'\"":
            place = _database_file(name[1:-1].replace(name[0] * 2, name[0]), True).replace("'", "''")
            return f"{found[1]} '{place}'"
        key = name[1:] if isinstance(given, dict) else sql[: found.start()].count("?")
        given[key] = _database_file(os.fsdecode(given[key]), True)
        return found[0]

    return NAMES_A_DATABASE.sub(replace, sql), given


class _NamesScratchFiles:
    """Methods of connections and cursors of SQLite."""

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        return super().execute(*_with_scratch_files(sql, parameters))  # type: ignore[misc]

    def executescript(self, sql: str) -> Any:
        return super().executescript(_with_scratch_files(sql)[0])  # type: ignore[misc]


def _connection_class(base: Any = None) -> Any:
    import sqlite3

    cursor_class: Any = type("Cursor", (_NamesScratchFiles, sqlite3.Cursor), {})
    if base is not None and issubclass(base, _NamesScratchFiles):
        return base
    original: Any = getattr(sqlite3.Connection, "__wrapped__", sqlite3.Connection)

    class Connection(_NamesScratchFiles, base or original):  # type: ignore[misc]
        def __init__(self, database: Any, *args: Any, **kwargs: Any) -> None:
            place = _database_file(os.fsdecode(database), bool(kwargs.get("uri"))) if applies() else database
            super().__init__(place, *args, **kwargs)

        def cursor(self, factory: Any = cursor_class) -> Any:
            return super().cursor(factory)

    return Connection


@stands_in_for("_sqlite3:Connection", "sqlite3:Connection", "sqlite3.dbapi2:Connection")
def _connect(original: Any, *args: Any, **kwargs: Any) -> Any:
    return _connection_class()(*args, **kwargs)


setattr(_connect, AS_BASE, _connection_class)


@stands_in_for("logging:FileHandler._open")
def _open_log(original: Any, self: Any) -> Any:
    note("log to {}", Path(self.baseFilename).name)
    with quietly():
        return original(self)


@stands_in_for("logging:FileHandler.emit")
def _log(original: Any, self: Any, record: Any) -> None:
    # A handler that was opened before the sketch would write to the user's own file.
    stream = self.stream
    if stream is None or guard().files.is_safe(found(getattr(stream, "name", self.baseFilename))):
        original(self, record)
    else:
        note("log to {}", Path(self.baseFilename).name)


@stands_in_for("torch.utils.tensorboard:SummaryWriter", "tensorboardX:SummaryWriter")
def _metrics_writer(original: Any, *args: Any, **kwargs: Any) -> Inert:
    folder = shown(args[0] if args else kwargs.get("log_dir") or kwargs.get("logdir") or "runs")
    note("write metrics to {}", folder)
    return Inert(log_dir=folder, logdir=folder)


@stands_in_for(
    "wandb:init", "wandb:log", "mlflow:start_run", "mlflow:log_metric", "mlflow:log_metrics", "mlflow:log_params"
)
def _metrics_server(original: Any, *args: Any, **kwargs: Any) -> Any:
    return _metrics_writer(original, f"{original.__module__.partition('.')[0]} ({original.__name__})")


def _check_database(args: tuple[Any, ...]) -> tuple[str, object]:
    text = os.fsdecode(args[0])
    harmless = text in ("", ":memory:") or text.startswith("file:") or guard().files.is_safe(text)
    return ("", "") if harmless else ("open the database {}", text)


REFUSED["sqlite3.connect"] = _check_database
