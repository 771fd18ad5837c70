"""Small execution traces of every schema, for tests to read, join and damage."""

import gzip
import json
from pathlib import Path
from typing import Any

ADDMM = "aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"
EMPTY = (
    "aten::empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
    "bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor"
)
GROUPS = '[{"pg_name": "0", "ranks": [], "group_size": 4}, {"pg_name": "7", "ranks": [1, 3], "group_size": 2}]'


def tensor(number: int, storage: int, count: int, offset: int = 0, device: str = "cuda:0") -> list[Any]:
    return [number, storage, offset, count, 4, device]


def node(number: int, name: str, parent: int, **more: Any) -> dict[str, Any]:
    return {
        "id": number, "name": name, "parent": parent, "rf_id": number, "fw_parent": 0, "seq_id": -1, "scope": 0,
        "tid": 1, "fw_tid": 0, "op_schema": "", "inputs": [], "input_shapes": [], "input_types": [], "outputs": [],
        "output_shapes": [], "output_types": [],
    } | more  # fmt: skip


def scaffold(number: int, what: str, parent: int, thread: int = 0) -> dict[str, Any]:
    return node(number, f"[pytorch|profiler|execution_trace|{what}]", parent, scope=7, rf_id=0, tid=thread)


def step() -> list[dict[str, Any]]:
    """A linear layer forward, its backward on another thread, an all-reduce and an optimizer, in the order they end."""
    weight, bias, x, y = tensor(20, 30, 32), tensor(21, 31, 8), tensor(22, 32, 16), tensor(23, 33, 32)
    grad = tensor(24, 32, 32)  # where x was
    float_ = "Tensor(float)"
    return [
        scaffold(2, "thread", 1, 1),
        node(3, "## process_group:init ##", 2, scope=7, inputs=[GROUPS], input_shapes=[[]], input_types=["String"]),
        node(
            6, "aten::addmm", 5, op_schema=ADDMM, inputs=[bias, x, weight, 1, 0.5],
            input_shapes=[[8], [4, 4], [4, 8], [], []], input_types=[float_] * 3 + ["Int", "Double"],
            outputs=[y], output_shapes=[[4, 8]], output_types=[float_],
        ),
        node(5, "aten::linear", 4, inputs=[x, weight, bias], input_shapes=[[4, 4], [8, 4], [8]],
             input_types=[float_] * 3, outputs=[y], output_shapes=[[4, 8]], output_types=[float_]),
        scaffold(7, "thread", 1, 2),
        node(10, "aten::empty", 9, tid=2, op_schema=EMPTY,
             inputs=[[4, 8], 15, "<None>", "cuda:0", False, "<None>"], input_shapes=[[[], []], [], [], [], [], []],
             input_types=["GenericList[Int,Int]", "Int", "None", "Device", "Bool", "None"],
             outputs=[grad], output_shapes=[[4, 8]], output_types=[float_]),
        node(11, "triton_poi_fused_0", 9, tid=2, inputs=[grad, 32, "grid(32,)"], input_shapes=[[4, 8], [], []],
             input_types=[float_, "Int", "String"]),
        node(9, "AddmmBackward0", 8, tid=2, scope=1, fw_parent=4, inputs=[y], input_shapes=[[4, 8]],
             input_types=[float_]),
        node(8, "autograd::engine::evaluate_function: AddmmBackward0", 7, tid=2),
        node(13, "record_param_comms", 12, inputs=[[grad], 5, ["7", "tp"], 1, "allreduce", [], [], 2],
             input_shapes=[[[4, 8]], [], [[], []], [], [], [], [], []],
             input_types=[f"GenericList[{float_}]", "Int", "Tuple[String,String]", "Int", "String", "GenericList[]",
                          "GenericList[]", "Int"],
             outputs=[[grad]], output_shapes=[[[4, 8]]], output_types=[f"GenericList[{float_}]"]),
        node(12, "c10d::allreduce_", 4, inputs=[[grad], "<Object>"], input_shapes=[[[4, 8]], []],
             input_types=[f"GenericList[{float_}]", "Object"]),
        node(15, "aten::_foreach_add_", 14, inputs=[[weight, bias], [grad, bias]],
             input_shapes=[[[4, 8], [8]], [[4, 8], [8]]], input_types=[f"GenericList[{float_},{float_}]"] * 2),
        node(14, "Optimizer.step#SGD.step", 4, scope=7),
        node(4, "ProfilerStep#3", 2, scope=7),
        scaffold(1, "process", 1),
    ]  # fmt: skip


_ATTRIBUTES = ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid", "op_schema")


def nested(flat: dict[str, Any], schema: str) -> dict[str, Any]:
    """A node as schemas after 1.0.1 write it."""
    sides = {}
    for side in ("input", "output"):
        values, shapes, types = (flat[f"{side}{part}"] for part in ("s", "_shapes", "_types"))
        sides[f"{side}s"] = {"values": values, "shapes": shapes, "types": types}
        if schema == "1.1.1":
            sides[f"{side}s"]["strides"] = [_strides(shape) for shape in shapes]
    attributes = {name: flat[name] for name in _ATTRIBUTES} | flat.get("more", {})
    listed = [{"name": name, "type": "any", "value": value} for name, value in attributes.items()]
    return {"id": flat["id"], "name": flat["name"], "ctrl_deps": flat["parent"], **sides, "attrs": listed}


def _strides(shape: list[Any]) -> list[Any]:
    if shape and isinstance(shape[0], list):
        return [_strides(inner) for inner in shape]
    return [1] * len(shape)


def trace(nodes: list[dict[str, Any]], schema: str = "1.0.1") -> dict[str, Any]:
    number = schema.partition("-")[0]
    written = nodes if number == "1.0.1" else [nested(n, number) for n in nodes]
    return {"schema": schema, "pid": 1, "time": "2026-01-01 00:00:00", "start_ts": 0, "nodes": written, "finish_ts": 1}


def write(path: Path, content: Any) -> Path:
    text = json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path
