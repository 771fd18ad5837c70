"""parallelize: the step of one rank as a job of many; and the parallelism that it is configured by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from foretrace.errors import check_count
from foretrace.graph import MAX_RANKS, ForetraceError, Graph, Job, Op
from foretrace.graph.op import COMPILED_REGION
from foretrace.transforms.blocks import block_index
from foretrace.transforms.draft import ProcessGroup, draft_of
from foretrace.transforms.parallel.context import share_attention, split_sequences
from foretrace.transforms.parallel.data import DEFAULT_BUCKET_MB, share_gradients
from foretrace.transforms.parallel.experts import with_experts
from foretrace.transforms.parallel.fsdp import shard_weights, unit_modules
from foretrace.transforms.parallel.hybrid import tables_on_ranks
from foretrace.transforms.parallel.pipeline import ADDED, FUSED, split_stages
from foretrace.transforms.parallel.schedules import (
    CONTEXT_KINDS,
    RING,
    check_schedule,
    chunks_of,
    data_tensors,
    first_round,
    microbatch_of,
)
from foretrace.transforms.parallel.splitting import preexisting_tensors
from foretrace.transforms.parallel.tensor import split_blocks
from foretrace.transforms.parallel.zero1 import shard_states
from foretrace.transforms.step import EditedCall
from foretrace.transforms.weights import propagate_owners, reject_sparse_gradients, weights_of

TENSOR, DATA, EXPERTS, CONTEXT = "tensor", "data", "experts", "context"
Share = Callable[[list[EditedCall], ProcessGroup, set[int]], list[EditedCall]]
"""DDP or FSDP: given calls, the ranks that share weights or gradients, and storages that they do not share."""


def parallelize(
    graph: Graph | Job,
    data: int = 1,
    tensor: int = 1,
    pipeline: int = 1,
    *,
    context: int = 1,
    context_kind: str = RING,
    overlap: bool = False,
    sequence: bool = False,
    sharded: bool | Sequence[str] = False,
    mixed: bool = False,
    experts: int = 1,
    tables: bool = False,
    microbatches: int = 1,
    schedule: str = "1f1b",
    chunks: int = 1,
    bucket_mb: float = DEFAULT_BUCKET_MB,
    zero1: bool = False,
) -> Job:
    """The job of many ranks made from the step of one: nothing runs, and no cluster is needed.

    Parameters
    ----------
    graph
        The step of one rank: a sketch, or a recording of one rank as `foretrace.load` returns it.
    data
        Data parallel ranks, each with a batch like the given one. They reduce gradients as DDP does.
    tensor
        Tensor parallel ranks, which split the linear layers of every block by columns and rows, as Megatron does.
    pipeline
        Stages that the blocks are divided into.
    context
        Context parallel ranks, which work on a part of every sequence each, and share attention. Weights and gradients
        are shared over them as over data parallel ranks.
    context_kind
        How they share attention: ``ring`` and ``all-gather`` as PyTorch's ``context_parallel``, ``all-to-all`` as
        DeepSpeed-Ulysses.
    overlap
        Whether tensor parallel reductions of backward overlap with the GEMMs of weight gradients, as in Megatron; else
        they come after them.
    sequence
        Whether tensor parallel ranks split activations along the sequence between the linear layers of a block:
        Megatron's sequence parallel.
    sharded
        Whether data parallel ranks hold a shard of the weights each, as in FSDP2; or the names of the modules that are
        gathered together. Pipeline stages gather theirs once per step, and experts are sharded over the ranks that hold
        the same ones.
    mixed
        Whether shards, reductions of gradients and the optimizer are float32 although the step computes in half
        precision: FSDP2's ``MixedPrecisionPolicy``.
    experts
        Expert parallel ranks among the data parallel ones: each holds some experts of every mixture.
    tables
        Whether data parallel ranks hold some embedding tables each, whole, and everything else, as DLRM is trained.
    microbatches
        Microbatches that the batch of a rank is split into.
    schedule
        Pipeline schedule: ``1f1b``, ``gpipe``, ``interleaved``, ``zb-h1`` or ``zbv``.
    chunks
        Groups of blocks on each stage, for ``interleaved``.
    bucket_mb
        Size of DDP's buckets; infinity for one all_reduce after backward.
    zero1
        Whether data parallel ranks hold a shard of the optimizer's states each, as in ZeRO-1 and Megatron's distributed
        optimizer: weights are gathered once per step, and gradients scattered once, after the last microbatch.

    Returns
    -------
    A job with a graph for each stage; ``alike`` maps the other ranks to them. Ranks are numbered as in Megatron: tensor
    parallel ranks are adjacent, then come context and data parallel ones, then stages.

    >>> from foretrace.graph import Op, OpTable, Tensor
    >>> w, x, g = (Tensor((8, 8), "float32", "cuda:0", id=n, storage=n) for n in range(3))
    >>> step = OpTable.of([
    ...     Op("aten::mm", (x, w), phase="forward"), Op("aten::mm", (x, x), outputs=(g,), phase="backward"),
    ...     Op("aten::add_", (w, g), outputs=(w,), phase="optimizer")])
    >>> job = parallelize(Graph(step), data=4)
    >>> job.world, [c.kind for c in job.graphs[0].collectives]
    (4, ['all_reduce'])
    """
    config = ParallelConfig(
        data, tensor, pipeline, overlap, sequence, sharded, mixed, experts, tables, microbatches, schedule, chunks,
        bucket_mb, zero1, context, context_kind,
    )  # fmt: skip
    graph = _single_rank(graph)
    if tables:
        return tables_on_ranks(graph, data, bucket_mb=bucket_mb)
    return _ParallelJob(graph, config).job()


@dataclass(frozen=True)
class ParallelConfig:
    """The options of `parallelize`; combinations that contradict each other raise.

    >>> ParallelConfig(data=4, tensor=2).world
    8
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    overlap: bool = False
    sequence: bool = False
    sharded: bool | Sequence[str] = False
    mixed: bool = False
    experts: int = 1
    tables: bool = False
    microbatches: int = 1
    schedule: str = "1f1b"
    chunks: int = 1
    bucket_mb: float = DEFAULT_BUCKET_MB
    zero1: bool = False
    context: int = 1
    context_kind: str = RING

    def __post_init__(self) -> None:
        for name in ("data", "tensor", "pipeline", "context", "microbatches", "experts", "chunks"):
            check_count(getattr(self, name), name, MAX_RANKS)
        if self.world > MAX_RANKS:
            raise ForetraceError(f"a job can't have {self.world:,} ranks", f"At most {MAX_RANKS:,} are simulated.")
        for refused, what, advice in self._contradictions():
            if refused:
                raise ForetraceError(what, advice)
        check_schedule(self.schedule, self.pipeline, self.microbatches, self.chunks)
        if (self.overlap or self.sequence) and self.tensor == 1:
            option = "overlap" if self.overlap else "sequence"
            raise ForetraceError(f"{option} needs tensor parallel ranks", "Give tensor, or leave it out.")
        if self.context_kind not in CONTEXT_KINDS:
            raise ForetraceError(
                f"there is no context_kind {self.context_kind!r}", f"There are {', '.join(CONTEXT_KINDS)}."
            )
        if not isinstance(self.bucket_mb, (int, float)) or not self.bucket_mb > 0:
            raise ForetraceError(
                f"bucket_mb can't be {self.bucket_mb!r}", "Give a size in MB, or infinity for one bucket."
            )

    def _contradictions(self) -> list[tuple[object, str, str]]:
        ranks = "Give data, the number of ranks."
        replicas = "data and context" if self.context > 1 else "data"
        uneven = f"{self.replicas} {replicas} parallel ranks can't be divided into groups of {self.experts} for experts"
        others = self.sharded or self.zero1 or max(self.tensor, self.pipeline, self.context, self.microbatches) > 1
        others = others or self.experts > 1
        both = "sharded and zero1 exclude one another: weights in shards have optimizer states in shards"
        full = self.zero1 and self.mixed  # one data parallel rank has its float32 weights for itself
        only_data = "tables can be combined with data parallel only", "Leave out everything but data."
        return [
            (self.mixed and not self.shards, "mixed needs sharded weights", "Give sharded too, or leave it out."),
            (self.sharded and self.zero1, both, "Leave out zero1, or sharded."),
            (self.shards and self.replicas == 1 and not full, "weights can't be sharded on one rank", ranks),
            (self.replicas % self.experts, uneven, "Give a multiple of experts as data."),
            (self.tables and self.data == 1, "tables can't be distributed on one rank", ranks),
            (self.tables and others, *only_data),
        ]

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.replicas * self.tensor * self.pipeline

    @property
    def replicas(self) -> int:
        """Ranks with the same weights, or shards of them: data parallel ones, each of some that share sequences."""
        return self.data * self.context

    @property
    def shards(self) -> bool:
        """Whether data parallel ranks hold shards, of weights or of optimizer states alone."""
        return bool(self.sharded) or self.zero1

    @property
    def gathers_once(self) -> bool:
        """Whether shards are gathered once per step, and not in each microbatch."""
        return self.zero1 or self.pipeline > 1

    @property
    def full_sums(self) -> str:
        """How half-precision gradients are added up in float32, if they are: Megatron's GEMMs do it, FSDP2 adds."""
        if self.mixed and self.zero1:
            return FUSED
        return ADDED if self.mixed and self.gathers_once and self.microbatches > 1 else ""

    @property
    def splits(self) -> bool:
        """Whether the batch is split into microbatches, or the blocks into stages."""
        return max(self.pipeline, self.microbatches) > 1 or bool(self.full_sums)


@dataclass(frozen=True)
class RankMesh:
    """The numbering of ranks: tensor parallel ones are adjacent, then come those with the same weights, then stages.

    Those with the same weights (``data``) are data parallel; with context parallel, so many adjacent ones of them share
    each sequence.

    >>> RankMesh(tensor=2, data=4, pipeline=2).at(stage=1, data=3, tensor=1)
    15
    """

    tensor: int
    data: int
    pipeline: int

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tensor * self.data * self.pipeline

    def at(self, stage: int = 0, data: int = 0, tensor: int = 0) -> int:
        """The rank at a position."""
        return (stage * self.data + data) * self.tensor + tensor

    def group(self, name: str, stage: int, size: int = 0) -> ProcessGroup:
        """The process group of that name with the first rank of a stage; of so many replicas, all if 0."""
        if name == TENSOR:
            return ProcessGroup(name, tuple(self.at(stage, 0, t) for t in range(self.tensor)))
        return ProcessGroup(name, tuple(self.at(stage, d, 0) for d in range(size or self.data)))

    def replicas(self, stage: int, experts: int) -> ProcessGroup:
        """The ranks that hold the same experts as the first one of a stage."""
        return ProcessGroup("expert replicas", self.group(DATA, stage).ranks[::experts])

    @property
    def alike(self) -> dict[int, int]:
        """For each rank but the first of its stage, that one."""
        each = self.tensor * self.data
        return {rank: rank - rank % each for rank in range(self.world) if rank % each}


def _single_rank(step: Graph | Job) -> Graph:
    """The one rank whose step is to be parallelized."""
    if isinstance(step, Graph):
        return step
    if len(step.graphs) != 1:
        raise ForetraceError(
            f"{step.source or 'the job'} has {len(step.graphs)} ranks: it is parallel already",
            "Give the step of one rank; world, buckets and overlap of such a job can be set.",
        )
    return step.graphs[0]


class _ParallelJob:
    """Applies the kinds of parallelism one after the other: to the whole step, then to each stage."""

    def __init__(self, graph: Graph, config: ParallelConfig) -> None:
        self._config = config
        self._mesh = RankMesh(config.tensor, config.replicas, config.pipeline)
        self._draft = draft_of(graph, "parallelize")
        self._experts: set[int] = set()
        """Storages of the experts' gradients."""
        self._rounds = 1
        """Rounds over which the given step adds up gradients, each of as many microbatches as were asked for."""
        if COMPILED_REGION in graph.ops.names.items and (
            config.shards or config.world > config.data or config.splits or config.experts > 1
        ):
            raise ForetraceError(
                f"{graph.title} is compiled: its kernels were fused for this very step, and belong to no block",
                "Share the uncompiled step (compile=off) and set fuse=elementwise; data alone takes a compiled one.",
            )
        if config.replicas > 1:
            reject_sparse_gradients(self._draft.ops, graph.source)

    def job(self) -> Job:
        """The job."""
        config, mesh, draft = self._config, self._mesh, self._draft
        calls, ops = draft.calls, draft.ops
        if config.splits:
            rows, self._rounds = first_round(ops, draft.graph.source)
            calls, ops = [calls[row] for row in rows], [ops[row] for row in rows]
        if config.context > 1:
            ops = split_sequences(ops, config.context, config.context_kind, draft.graph.source)
        if config.splits:
            draft.whole = self._batch_bytes(ops)
            ops = microbatch_of(ops, config.microbatches, draft.graph.source)
        calls = [replace(call, op=op) for call, op in zip(calls, ops)]
        if config.tensor > 1:
            calls = split_blocks(draft, calls, mesh.group(TENSOR, 0), config.overlap, config.sequence)
        if config.context > 1:
            group = mesh.group(CONTEXT, 0, config.context)
            calls = share_attention(draft, calls, group, config.context_kind)
        if config.experts > 1:
            calls, self._experts = with_experts(draft, calls, mesh.group(EXPERTS, 0, config.experts))
        share = self._fsdp() if config.shards else self._ddp
        if config.shards and not config.gathers_once:  # each microbatch gathers and scatters again
            calls = self._shared(calls, 0, share)
        staged = [calls]
        if config.splits:
            firsts = tuple(mesh.at(stage) for stage in range(config.pipeline))
            shape = config.microbatches * self._rounds, config.schedule, config.chunks
            staged = split_stages(draft, calls, firsts, *shape, config.full_sums, bool(config.sharded))
        graphs = []
        for stage, ours in enumerate(staged):
            ours = [self._with_stage_group(call, stage) for call in ours]
            if max(config.replicas, 2 * config.shards) > 1 and (config.gathers_once or not config.shards):
                ours = self._shared(ours, stage, share)
            graphs.append(draft.graph_of(ours, mesh.at(stage), mesh.world, "; ".join(self._notes())))
        return Job(graphs, draft.graph.source, alike=mesh.alike)

    def _batch_bytes(self, ops: Sequence[Op]) -> dict[int, int]:
        """Bytes of what a rank is given, by storage: with context parallel, those of its part of the sequences."""
        whole, storages = preexisting_tensors(self._draft.ops), self._draft.graph.storages
        given = [t for t in data_tensors(ops, preexisting_tensors(ops)) if t.storage in storages and t.nbytes]
        return {t.storage: storages[t.storage].nbytes * t.nbytes // whole[t.storage].nbytes for t in given}

    def _with_stage_group(self, call: EditedCall, stage: int) -> EditedCall:
        """A call with the process group of its stage."""
        sizes = {TENSOR: 0, EXPERTS: self._config.experts, CONTEXT: self._config.context}
        if call.collective is None or call.collective.group not in sizes:
            return call
        group = self._mesh.group(call.collective.group, stage, sizes[call.collective.group])
        return replace(call, collective=replace(call.collective, ranks=group.ranks))

    def _ddp(self, calls: list[EditedCall], group: ProcessGroup, excluded: set[int]) -> list[EditedCall]:
        return share_gradients(self._draft, calls, group, self._config.bucket_mb, excluded)

    def _fsdp(self) -> Share:
        config, draft = self._config, self._draft
        units = unit_modules(draft.ops, None if isinstance(config.sharded, bool) else config.sharded)

        def shard(calls: list[EditedCall], group: ProcessGroup, excluded: set[int]) -> list[EditedCall]:
            modules = {call.op.module for call in calls}
            ours = [unit for unit in units if any(block_index(module, [unit]) == 0 for module in modules)]
            if config.zero1:
                return shard_states(draft, calls, group, ours, config.mixed, excluded)
            chunks = chunks_of(config.schedule, config.chunks) if config.pipeline > 1 else 0
            return shard_weights(draft, calls, group, ours, config.mixed, chunks, excluded)

        return shard

    def _shared(self, calls: list[EditedCall], stage: int, share: Share) -> list[EditedCall]:
        """The calls with DDP or FSDP over data parallel ranks; that of experts over the ranks that hold the same."""
        experts, others = self._separate_experts(calls)
        calls = share(calls, self._mesh.group(DATA, stage), experts)
        replicas = self._mesh.replicas(stage, self._config.experts)
        if experts and (replicas.size > 1 or self._config.zero1):  # whose weights have float32 copies on one rank too
            others |= {t.storage for call in calls if call.op.phase == "optimizer" for t in call.op.tensors} - experts
            calls = share(calls, replicas, others)
        return calls

    def _separate_experts(self, calls: list[EditedCall]) -> tuple[set[int], set[int]]:
        """Storages of weights, gradients and optimizer states: of experts, and of everything else."""
        if not self._experts:
            return set(), set()
        is_expert = {s: s in self._experts for s in weights_of([call.op for call in calls]).weights}
        update = [call.op for call in calls if call.op.phase == "optimizer" and call.collective is None]
        propagate_owners(update, is_expert)
        experts = {storage for storage, of_expert in is_expert.items() if of_expert}
        return experts, is_expert.keys() - experts

    def _notes(self) -> list[str]:
        config = self._config
        notes = []
        sizes = (config.tensor, "tensor"), (config.context, "context"), (config.data, "data")
        degrees = [f"{n} {name}" for n, name in sizes if n > 1]
        if degrees:
            parts = [f"parallel over {' x '.join(degrees)} ranks"]
            if config.sequence:
                parts.append("activations split along the sequence")
            if config.context > 1:
                parts.append(f"{config.context_kind} attention")
            if config.overlap:
                parts.append("reductions of input gradients overlapping with GEMMs")
            if config.shards:
                parts.append("optimizer states sharded" if config.zero1 else "weights sharded")
            elif config.replicas > 1:
                parts.append("one bucket" if config.bucket_mb == inf else f"buckets of {config.bucket_mb:g} MB")
            notes.append(", ".join([*parts, "made from the step of one rank"]))
        each = f" in each of its {self._rounds} rounds of gradient accumulation" if self._rounds > 1 else ""
        if config.pipeline > 1:
            chunks = chunks_of(config.schedule, config.chunks)
            several = f", {chunks} chunks of blocks each" if chunks > 1 else ""
            kind = f"a pipeline of {config.pipeline} stages ({config.schedule}{several})"
            notes.append(f"{kind} over {config.microbatches} microbatches{each} was added to the step")
        elif config.microbatches > 1:
            notes.append(f"gradient accumulation over {config.microbatches} microbatches{each} was added to the step")
        return notes
