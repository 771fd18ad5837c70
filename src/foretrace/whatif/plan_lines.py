"""Why a plan helps, and how to apply it: the launch, calls of PyTorch, and torchtitan's settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from foretrace.errors import ForetraceError
from foretrace.graph import Job, Op
from foretrace.graph.operators import LINEAR
from foretrace.transforms.blocks import all_repeated_blocks, block_index
from foretrace.transforms.parallel.parallelize import parallelize
from foretrace.transforms.parallel.schedules import ALL_TO_ALL, RING, chunks_of
from foretrace.transforms.structure.checkpointing import NUMBERS, SELECTIVE, SHARE
from foretrace.transforms.structure.optimizer import optimizer_class
from foretrace.whatif.plans import Plan, batches_of, settings

WHY = {
    "data": "{} replicas, each with a batch of its own",
    "tensor": "layers are split between {} ranks of a node: less memory and work a rank, communication in each layer",
    "sequence": "norms and dropouts are split over the sequence as well: less memory, as much communication",
    "context": "each sequence is split between {} ranks: less memory for activations, and attention is shared",
    "context_kind": "attention by {}",
    "pipeline": "blocks in {} stages: weights and activations of a stage only, for a bubble at both ends",
    "microbatches": "{} parts of the batch, one after the other: fewer activations at a time, stages kept busy",
    "overlap": "reductions of tensor parallel layers go on beside the matrix products of weight gradients",
    "schedule": "each stage has several groups of blocks ({}): a smaller bubble, for more sends",
    "experts": "experts of a mixture on {} ranks, which send tokens to each other",
    "zero1": "optimizer states in shards: less memory, as much communication",
    "sharded": "weights, gradients and optimizer state in shards (FSDP2), gathered layer by layer",
    "mixed": "shards are gathered in bfloat16, and kept in float32: half of the traffic",
    "buckets": "gradients are reduced in buckets of {} MB: fewer, larger all-reduces",
    "batch": "a batch of {} a rank",
    "autocast": "matrix products in bfloat16 on Tensor Cores",
    "optimizer": "one fused kernel updates all weights: fewer launches, less memory traffic",
    "fuse": "element-wise calls are fused, as torch.compile does it: less memory traffic, fewer launches",
}
CHECKPOINTED = {
    "*": "blocks keep only their inputs, and are computed again in backward: less memory, a third more work",
    SELECTIVE: "blocks keep attention and every second matrix product, and compute the rest again: less memory",
}
SCHEDULE_NAMES = {
    "interleaved": "Interleaved1F1B", "gpipe": "GPipe", "zb-h1": "InterleavedZeroBubble", "zbv": "ZBVZeroBubble"
}  # fmt: skip
"""PyTorch's names of pipeline schedules; its others are 1F1B."""
NUMBERED = re.compile(r"\.(\d+)(?=\.|$)")
"""Places in lists of modules, as they stand in names."""
NODE = 8
"""GPUs of a node, where nothing says how many there are."""


def reasons(plan: Plan) -> Iterator[str]:
    """Why each of the changes helps."""
    for name, value in settings(plan.changes).items():
        if name == "checkpoint":
            yield CHECKPOINTED.get(value, f"{value} of the blocks are computed again in backward: less memory")
        elif name in WHY and value not in ("1", "off"):
            yield WHY[name].format(value)


def lines(plan: Plan, job: Job, script: str, gpus_per_node: int | None = None, blocks: int | None = None) -> list[str]:
    """How to make the plan so; ``blocks`` says how many the model has, where the job has fewer.

    >>> from foretrace.graph import Graph, OpTable
    >>> plan = Plan(["data=16"], 16, 1.0, 1.0, None, None, None, None, True)
    >>> lines(plan, Job([Graph(OpTable.of([]))]), "train.py")[0]
    'torchrun --nnodes 2 --nproc-per-node 8 train.py'
    """
    return list(_lines(plan, job, script, gpus_per_node or NODE, blocks))


def _lines(plan: Plan, job: Job, script: str, node: int, blocks: int | None) -> Iterator[str]:
    given = settings(plan.changes)
    if plan.ranks > 1:
        nodes = -(-plan.ranks // node)
        yield f"torchrun --nnodes {nodes} --nproc-per-node {min(plan.ranks, node)} {script}"
        if nodes > 1:
            yield "# on each node, with --rdzv-backend c10d --rdzv-endpoint HOST:29500 before the script"
    if job.world == 1:
        count = blocks or len(all_repeated_blocks(list(job.graphs[0].ops)))
        yield from _calls(given, job, count)
        if _is_language_model(job.graphs[0].ops):  # torchtitan trains others by code of their own
            yield from (f"# torchtitan: {line}" for line in torchtitan_settings(given, plan.samples, count))


def _calls(given: Mapping[str, str], job: Job, count: int) -> Iterator[str]:
    """Calls of PyTorch, in the order in which they have to be made, for a model of so many blocks."""
    ops = list(job.graphs[0].ops)
    names = all_repeated_blocks(ops)
    blocks = _blocks(names)
    if blocks.startswith("(") and len(names) < count:
        blocks = "blocks"
        yield f"blocks = ...  # the {count} modules that the model repeats, as {_path(names[0])}"
    _, rounds = batches_of(job)
    degrees = {name: int(given.get(name, 1)) for name in ("pipeline", "data", "context", "tensor")}
    used = {name: ranks for name, ranks in degrees.items() if ranks > 1}
    if used:
        short = {"pipeline": "pp", "data": "dp", "context": "cp", "tensor": "tp"}
        sizes = "".join(f"{ranks}, " for ranks in used.values()).rstrip(" " if len(used) == 1 else ", ")
        dims = "".join(f'"{short[name]}", ' for name in used).rstrip(" " if len(used) == 1 else ", ")
        yield f'mesh = init_device_mesh("cuda", ({sizes}), mesh_dim_names=({dims}))'
    if "batch" in given:
        whose = "a data parallel rank" if rounds == 1 else f"each of the {rounds} micro-batches of a rank"
        yield f"batch_size = {given['batch']}  # of {whose}"
    if "pipeline" in used:
        name = f"Schedule{SCHEDULE_NAMES.get(given.get('schedule', ''), '1F1B')}"
        chunks = chunks_of(given.get("schedule", ""), int(given.get("chunks", 1)))
        stages = "stages" if chunks > 1 else "stage"
        each = f", {chunks} of them on each rank" if chunks > 1 else ""
        yield f"schedule = {name}({stages}, n_microbatches={given['microbatches']}, loss_fn=loss_fn)" + (
            f"  # {count} blocks in {used['pipeline'] * chunks} stages{each}"
        )
    if "tensor" in used:
        yield from _tensor_parallel(given, _split_layers(job, ops, names, used["tensor"]), blocks)
    if "context" in used:
        yield from _context_parallel(given.get("context_kind", RING))
    if "checkpoint" in given:
        yield _checkpointing(given["checkpoint"], blocks)
    if "fuse" in given:
        by_block = names and (len(used) > ("data" in used) or {"sharded", "checkpoint"} & given.keys())
        yield f"for block in {blocks}: block.compile()" if by_block else "model.compile()"
    if {"data", "context"} & used.keys():
        yield from _data_parallel(given, used, blocks, bool(names))
    if "autocast" in given:
        yield 'with torch.autocast("cuda", torch.bfloat16): loss = ...  # the forward pass'
    yield from _optimizer(given, job)
    if (parts := int(given.get("microbatches", 1))) > 1 and "pipeline" not in used:
        size = f" of {int(given['batch']) // parts}" if "batch" in given else ""
        every = parts * rounds
        yield f"for part in microbatches: (loss_fn(model, part) / {every}).backward()  # {every}{size}, then one step"


def _is_language_model(ops: Iterable[Op]) -> bool:
    names = {op.name.removeprefix("aten::") for op in ops if op.phase == "forward"}
    return "embedding" in names and "convolution" not in names


def _blocks(names: Sequence[str]) -> str:
    """What all blocks of a model are in Python: the list that holds them, or each of them by itself.

    >>> _blocks(["Net.h.0", "Net.h.1"]), _blocks(["Net.f.0", "Net.f.3"])
    ('model.h', '(model.f[0], model.f[3])')
    >>> _blocks(["Net.a.0.0", "Net.a.0.1", "Net.a.1.0"])
    '(*model.a[0], *model.a[1])'
    """
    lists: dict[str, list[str]] = {}
    for name in names:
        of, _, number = _path(name).rpartition(".")
        lists.setdefault(NUMBERED.sub(r"[\1]", f"model.{of}"), []).append(number)
    whole = {of: numbers == [str(n) for n in range(len(numbers))] for of, numbers in lists.items()}
    if len(lists) == 1 and all(whole.values()):
        return next(iter(lists))
    each = (f"*{of}" if whole[of] else ", ".join(f"{of}[{n}]" for n in numbers) for of, numbers in lists.items())
    return f"({', '.join(each)})" if lists else "model.blocks"


def _optimizer(given: Mapping[str, str], job: Job) -> Iterator[str]:
    if "optimizer" not in given and "zero1" not in given:
        return
    own = optimizer_class(job.graphs[0])
    if own is None:
        yield "# the optimizer is none of those that Foretrace knows: see whether it takes fused=True"
        return
    fused = ", fused=True" if "optimizer" in given else ""
    zero = f"ZeroRedundancyOptimizer(model.parameters(), torch.optim.{own}{fused})"
    if {"zero1", "mixed"} <= given.keys():
        yield "# Megatron-LM: --use-distributed-optimizer --bf16 --accumulate-allreduce-grads-in-fp32;"
        yield "# PyTorch's ZeroRedundancyOptimizer has no float32 weights beside half-precision ones:"
    made = zero if "zero1" in given else f"torch.optim.{own}(model.parameters(){fused})"
    yield f"optimizer = {made}  # its other options stay"


def _tensor_parallel(given: Mapping[str, str], split: Mapping[str, str], blocks: str) -> Iterator[str]:
    plan = ", ".join(f'"{name}": {how}()' for name, how in split.items())
    yield f'for block in {blocks}: parallelize_module(block, mesh["tp"], {{{plan}}})'
    if "sequence" in given:
        yield "# and SequenceParallel() for the norms of each block in the same plan"
    if given.get("overlap") == "on":
        yield "torch._inductor.config._micro_pipeline_tp = True  # in compiled blocks; Megatron-LM: --tp-comm-overlap"
        yield 'symmetric_memory.enable_symm_mem_for_group(mesh["tp"].get_group().group_name)'


def _context_parallel(kind: str) -> Iterator[str]:
    if kind == ALL_TO_ALL:
        yield "# PyTorch has no all-to-all attention: DeepSpeed-Ulysses has, and TransformerEngine (cp_comm_type='a2a')"
        return
    yield f'set_rotate_method("{"alltoall" if kind == RING else "allgather"}")'
    yield 'with context_parallel(mesh["cp"], buffers=[inputs, labels], buffer_seq_dims=[1, 1]): loss = ...  # forward'


def _data_parallel(given: Mapping[str, str], used: Mapping[str, int], blocks: str, repeated: bool) -> Iterator[str]:
    mesh = 'mesh["dp"]' if "data" in used else 'mesh["cp"]'
    if "context" in used and "data" in used:
        yield 'replicas = mesh["dp", "cp"]._flatten("dp_cp")'
        mesh = "replicas"
    if "sharded" not in given:
        size = f", bucket_cap_mb={given['buckets']}" if "buckets" in given else ""
        yield f"model = DistributedDataParallel(model, process_group={mesh}.get_group(){size})"
        return
    policy = ""
    if "mixed" in given:
        yield "policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)  # float32 weights"
        policy = ", mp_policy=policy"
    kept = ", reshard_after_forward=False" if "pipeline" in given else ""
    if repeated:
        yield f"for block in {blocks}: fully_shard(block, mesh={mesh}{policy}{kept})"
    yield f"fully_shard(model, mesh={mesh}{policy}{kept})"


def _checkpointing(value: str, blocks: str) -> str:
    if value == SELECTIVE:
        return (
            f"# selective checkpointing of {blocks}: keep attention and every second mm, by a context_fn of checkpoint"
        )
    chosen = f"{{*{blocks}}}"
    if share := SHARE.fullmatch(value):
        some, of = int(share[1]), int(share[2])
        test = f"n % {of} == {of - 1}" if some == 1 else f"n * {some} // {of} < (n + 1) * {some} // {of}"
        chosen = f"{{block for n, block in enumerate({blocks}) if {test}}}"
    elif numbers := NUMBERS.fullmatch(value):
        chosen = f"{{*[*{blocks}][{numbers[1]}:{int(numbers[2]) + 1}]}}"
    elif value != "*":
        return f"# checkpointing of {blocks}: {value}"
    return f"apply_activation_checkpointing(model, check_fn={chosen}.__contains__)"


def _path(module: str) -> str:
    """A module's name inside of its model, whose class comes first."""
    return module.partition(".")[2]


def _split_layers(job: Job, ops: list[Op], names: list[str], ranks: int) -> dict[str, str]:
    """How the layers of a block are split, by what `parallelize` makes of their weights."""
    with suppress(ForetraceError):
        split = parallelize(job, tensor=ranks).graphs[0].ops
        before, after = _weight_shapes(ops, names), _weight_shapes(split, names)
        return {
            name: "ColwiseParallel" if after[name][0] < shape[0] else "RowwiseParallel"
            for name, shape in before.items()
            if name in after and after[name] != shape
        }
    return {}


def _weight_shapes(ops: Iterable[Op], names: list[str]) -> dict[str, tuple[int, ...]]:
    """Outputs and inputs of the first block's linear layers, by the shapes of their products."""
    found: dict[str, tuple[int, ...]] = {}
    for op in ops:
        if op.phase == "forward" and op.name in LINEAR and block_index(op.module, names[:1]) == 0:
            *_, weight = op.tensors
            found.setdefault(op.module[len(names[0]) + 1 :], (weight.shape[1], weight.shape[0]))
    return found


def torchtitan_settings(given: Mapping[str, str], samples: int | None = None, blocks: int | None = None) -> list[str]:
    """The sections of a torchtitan job's TOML file that a plan changes, for so many samples in a step and blocks.

    >>> torchtitan_settings({"data": "32", "tensor": "8", "sharded": "on", "checkpoint": "1/2"})[0]
    '[parallelism] data_parallel_shard_degree = 32, tensor_parallel_degree = 8'
    """
    sections = {"parallelism": _parallelism_settings(given, blocks), "training": _training_settings(given, samples)}
    if "checkpoint" in given:
        sections["activation_checkpoint"] = _activation_checkpoint(given["checkpoint"])
    if "optimizer" in given:
        sections["optimizer"] = {"implementation": '"fused"'}
    if "fuse" in given or given.get("overlap") == "on":  # which is done by the compiler
        sections["compile"] = {"enable": "true"}
    lines = [f"[{name}] {', '.join(f'{k} = {v}' for k, v in each.items())}" for name, each in sections.items() if each]
    return [*lines, *_not_in_torchtitan(given)]


def _parallelism_settings(given: Mapping[str, str], blocks: int | None) -> dict[str, str]:
    found: dict[str, str] = {}
    if "data" in given:
        kind = "shard" if "sharded" in given else "replicate"
        found[f"data_parallel_{kind}_degree"] = given["data"]
        if kind == "replicate":
            found["data_parallel_shard_degree"] = "1"
    for name in ("tensor", "context", "pipeline", "expert"):
        if (degree := given.get("experts" if name == "expert" else name, "1")) != "1":
            found[f"{name}_parallel_degree"] = degree
    if "context" in given and given.get("context_kind", RING) == RING:
        found["context_parallel_rotate_method"] = '"alltoall"'
    if given.get("overlap") == "on":
        found["enable_async_tensor_parallel"] = "true"
    return found | (_pipeline_settings(given, blocks) if "pipeline" in given else {})


def _training_settings(given: Mapping[str, str], samples: int | None) -> dict[str, str]:
    found: dict[str, str] = {}
    parts = 1 if "pipeline" in given else int(given.get("microbatches", 1))
    if "batch" in given:
        found["local_batch_size"] = str(int(given["batch"]) // parts)
    if parts > 1 and samples:  # gradients are accumulated
        found["global_batch_size"] = str(samples)
    if {"autocast", "mixed"} & given.keys():
        found["mixed_precision_param"] = '"bfloat16"'
    return found


def _not_in_torchtitan(given: Mapping[str, str]) -> Iterator[str]:
    """Remarks on what torchtitan has no setting for.

    >>> list(_not_in_torchtitan({"checkpoint": "3/4"}))
    ['# torchtitan checkpoints all blocks or every so many: not 3/4 of them']
    """
    if "zero1" in given and "sharded" not in given:
        yield "# torchtitan has no ZeRO-1: without FSDP, every rank keeps all of the optimizer's states"
    if "tensor" in given and "sequence" not in given:
        yield "# torchtitan's tensor parallel ranks always split norms over the sequence: sequence=on"
    if given.get("context_kind") == ALL_TO_ALL:
        yield "# torchtitan has no all-to-all attention: its context parallel is ring attention"
    if "checkpoint" in given and not _activation_checkpoint(given["checkpoint"]):
        yield f"# torchtitan checkpoints all blocks or every so many: not {given['checkpoint']} of them"


def _pipeline_settings(given: Mapping[str, str], blocks: int | None) -> dict[str, str]:
    schedule = SCHEDULE_NAMES.get(given.get("schedule", ""), "1F1B")
    found = {"pipeline_parallel_schedule": f'"{schedule}"'}
    if "batch" in given:
        size = max(int(given["batch"]) // int(given["microbatches"]), 1)
        found["pipeline_parallel_microbatch_size"] = str(size)
    if blocks and int(given.get("chunks", 1)) > 2:  # torchtitan's own are two
        found["pipeline_parallel_layers_per_stage"] = str(-(-blocks // (int(given["pipeline"]) * int(given["chunks"]))))
    return found


def _activation_checkpoint(mode: str) -> dict[str, str]:
    if mode == SELECTIVE:
        return {"mode": '"selective"', "selective_ac_option": '"op"'}
    if mode.startswith("1/"):
        return {"mode": '"selective"', "selective_ac_option": f'"{mode[2:]}"'}
    return {"mode": '"full"'} if mode == "*" else {}
