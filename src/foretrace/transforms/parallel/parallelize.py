"""How ranks are to share a step, checked before there is a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from foretrace.errors import check_count
from foretrace.graph import MAX_RANKS, ForetraceError, Graph, Job
from foretrace.transforms.blocks import block_index
from foretrace.transforms.draft import Draft, ProcessGroup, draft_of
from foretrace.transforms.parallel import schedules
from foretrace.transforms.parallel.data import DEFAULT_BUCKET_MB, share_gradients
from foretrace.transforms.parallel.experts import with_experts
from foretrace.transforms.parallel.fsdp import shard_weights as in_shards
from foretrace.transforms.parallel.fsdp import unit_modules
from foretrace.transforms.parallel.hybrid import tables_on_ranks
from foretrace.transforms.parallel.pipeline import microbatch_calls, pipeline_note, split_stages
from foretrace.transforms.parallel.tensor import split_blocks
from foretrace.transforms.step import EditedCall
from foretrace.transforms.weights import propagate_owners, reject_sparse_gradients, weights_of

COUNTS = ("data", "tensor", "pipeline", "microbatches", "experts", "chunks")


@dataclass(frozen=True)
class ParallelConfig:
    """What `foretrace.parallelize` is asked for; what contradicts itself is refused.

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

    def __post_init__(self) -> None:
        self._check_counts()
        self._check_shards()
        self._check_experts()
        self._check_tables()
        schedules.check_schedule(self.schedule, self.pipeline, self.microbatches, self.chunks)
        if (self.overlap or self.sequence) and self.tensor == 1:
            asked = "overlap" if self.overlap else "sequence"
            raise ForetraceError(
                f"{asked} is about tensor parallel ranks, and there is one", "Give tensor, or leave it out."
            )
        if not isinstance(self.bucket_mb, (int, float)) or not self.bucket_mb > 0:
            raise ForetraceError(
                f"bucket_mb can't be {self.bucket_mb!r}", "Give a size in MB, or infinity for one bucket."
            )

    @property
    def world(self) -> int:
        """How many ranks that takes."""
        return self.data * self.tensor * self.pipeline

    def _check_counts(self) -> None:
        for name in COUNTS:
            check_count(getattr(self, name), name, MAX_RANKS)
        if self.world > MAX_RANKS:
            raise ForetraceError(f"a job can't have {self.world:,} ranks", f"At most {MAX_RANKS:,} are simulated.")

    def _check_shards(self) -> None:
        if self.mixed and not self.sharded:
            raise ForetraceError(
                "mixed says how shards are kept, and there are none", "Give sharded too, or leave it out."
            )
        if self.sharded and self.data == 1:
            raise ForetraceError(
                "weights can't be in shards on one rank", "Give data, the number of ranks to share them."
            )

    def _check_experts(self) -> None:
        if self.experts == 1:
            return
        if self.data % self.experts:
            raise ForetraceError(
                f"{self.experts} ranks that share experts can't be made of {self.data} data parallel ones",
                "Give a data they divide.",
            )

    def _check_tables(self) -> None:
        if not self.tables:
            return
        if self.data == 1:
            raise ForetraceError("tables need several ranks to lie on", "Give data, the number of ranks.")
        if self.sharded or max(self.tensor, self.pipeline, self.microbatches, self.experts) > 1:
            raise ForetraceError(
                "tables on ranks of their own go together with data parallel only", "Leave out everything but data."
            )


# --- was transforms.parallel.parallelize: A step of one rank as a job of many.

TENSOR, DATA, EXPERTS = "tensor", "data", "experts"


@dataclass(frozen=True)
class RankMesh:
    """Where each rank stands: ranks of one tensor group are neighbours, then come data parallel ones, then stages.

    >>> RankMesh(tensor=2, data=4, pipeline=2).at(stage=1, data=3, tensor=1)
    15
    """

    tensor: int
    data: int
    pipeline: int

    @property
    def world(self) -> int:
        """How many there are."""
        return self.tensor * self.data * self.pipeline

    def at(self, stage: int = 0, data: int = 0, tensor: int = 0) -> int:
        """The rank at a place."""
        return (stage * self.data + data) * self.tensor + tensor

    def group(self, name: str, stage: int, experts: int = 1) -> ProcessGroup:
        """The group of that name in which the first rank of a stage is."""
        if name == TENSOR:
            return ProcessGroup(name, tuple(self.at(stage, 0, t) for t in range(self.tensor)))
        count = experts if name == EXPERTS else self.data
        return ProcessGroup(name, tuple(self.at(stage, d, 0) for d in range(count)))

    def replicas(self, stage: int, experts: int) -> ProcessGroup:
        """The ranks that keep the same experts as the first one of a stage."""
        return ProcessGroup("expert replicas", self.group(DATA, stage).ranks[::experts])

    @property
    def alike(self) -> dict[int, int]:
        """For each rank but the first of its stage, that one."""
        each = self.tensor * self.data
        return {rank: rank - rank % each for rank in range(self.world) if rank % each}


def parallelize(
    graph: Graph | Job,
    data: int = 1,
    tensor: int = 1,
    pipeline: int = 1,
    *,
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
) -> Job:
    """The job that many ranks make of the step of one: nothing runs, and no cluster is needed.

    Parameters
    ----------
    graph
        The step of one rank: a sketch, or a recording of one as `foretrace.load` gives it.
    data
        How many ranks train the same, each on a batch like the one given. They share gradients as DDP does it.
    tensor
        How many ranks share the work of every block, by columns and rows as Megatron has it.
    pipeline
        How many stages the blocks are cut into.
    overlap
        Whether sums of tensor parallel ranks in backward go out beside the products of the weights' gradients, as
        Megatron does it; else after them.
    sequence
        Whether tensor parallel ranks have a part of every sequence each between the products of a block: Megatron's
        sequence parallel.
    sharded
        Whether data parallel ranks keep a shard of the weights each, as FSDP2 does it; or the names of the modules that
        are gathered together. Stages of a pipeline gather theirs once a step, and experts are in shards over the ranks
        that keep the same ones.
    mixed
        Whether the shards, the sums of gradients and the optimizer are float32 although the step computes in half
        precision: FSDP2's ``MixedPrecisionPolicy``.
    experts
        How many of the data parallel ranks share the experts of every mixture; each keeps some of them.
    tables
        Whether data parallel ranks keep some of the embedding tables each, whole, and all the rest, as DLRM is trained.
    microbatches
        Parts that the batch of a rank is cut into.
    schedule
        In which order stages work on them: ``1f1b``, ``gpipe`` or ``interleaved``.
    chunks
        Groups of blocks on each stage, for ``interleaved``.
    bucket_mb
        Size of DDP's buckets; infinity for one all_reduce after backward.

    Returns
    -------
    A job with a graph for each stage, and who is like them. Ranks are numbered as in Megatron: those of a tensor group
    are neighbours, then come the data parallel ones, then the stages.

    >>> from foretrace.graph import Op, OpTable, Tensor
    >>> w, x, g = (Tensor((8, 8), "float32", "cuda:0", id=n, storage=n) for n in range(3))
    >>> step = OpTable.of([
    ...     Op("aten::mm", (x, w), phase="forward"), Op("aten::mm", (x, x), outputs=(g,), phase="backward"),
    ...     Op("aten::add_", (w, g), outputs=(w,), phase="optimizer")])
    >>> job = parallelize(Graph(step), data=4)
    >>> job.world, [c.kind for c in job.graphs[0].collectives]
    (4, ['all_reduce'])
    """
    ParallelConfig(
        data, tensor, pipeline, overlap, sequence, sharded, mixed, experts, tables, microbatches, schedule, chunks,
        bucket_mb,
    )  # fmt: skip
    graph = _alone(graph)
    if tables:
        return tables_on_ranks(graph, data, bucket_mb=bucket_mb)
    ranks = RankMesh(tensor, data, pipeline)
    draft = draft_of(graph, "parallelize")
    if data > 1:
        reject_sparse_gradients(draft.ops, graph.source)
    notes = _told(ranks, overlap, sequence, sharded, bucket_mb)
    calls, own = draft.calls, set[int]()
    in_parts = pipeline > 1 or microbatches > 1
    if in_parts:
        calls = microbatch_calls(draft, calls, microbatches)
        notes.append(pipeline_note(pipeline, microbatches, schedule, chunks))
    if tensor > 1:
        calls = split_blocks(draft, calls, ranks.group(TENSOR, 0), overlap, sequence)
    if experts > 1:
        calls, own = with_experts(draft, calls, ranks.group(EXPERTS, 0, experts))
    units = unit_modules(draft.ops, None if isinstance(sharded, bool) else sharded) if sharded else []
    shards = _Shards(draft, ranks, experts, own, units, mixed)
    if sharded and pipeline == 1:  # each part of the batch gathers and scatters anew
        calls = shards.of(calls, 0, stays=False)
    firsts = tuple(ranks.at(stage) for stage in range(pipeline))
    staged = split_stages(draft, calls, firsts, microbatches, schedule, chunks) if in_parts else [calls]
    graphs = []
    for stage, ours in enumerate(staged):
        ours = [_moved(call, ranks, stage, experts) for call in ours]
        if data > 1 and not sharded:
            ours = _with_gradients(draft, ours, ranks, stage, own, experts, bucket_mb)
        if sharded and pipeline > 1:
            ours = shards.of(ours, stage, stays=True)
        graphs.append(draft.graph_of(ours, ranks.at(stage), ranks.world, "; ".join(notes)))
    return Job(graphs, graph.source, alike=ranks.alike)


def _alone(step: Graph | Job) -> Graph:
    """The one rank whose step is to be shared."""
    if isinstance(step, Graph):
        return step
    if len(step.graphs) != 1:
        raise ForetraceError(
            f"{step.source or 'the job'} has {len(step.graphs)} ranks, and shares its step already",
            "Give the step of one rank; world, buckets and overlap of such a job can be set.",
        )
    return step.graphs[0]


def _with_gradients(
    draft: Draft, calls: list[EditedCall], ranks: RankMesh, stage: int, own: set[int], experts: int, bucket_mb: float
) -> list[EditedCall]:
    """The calls with gradients shared: those of experts among the ranks that keep the same ones."""
    calls = share_gradients(draft, calls, ranks.group(DATA, stage), bucket_mb, own)
    replicas = ranks.replicas(stage, experts)
    if not own or replicas.size == 1:
        return calls
    others = weights_of([call.op for call in calls]).storages - own
    return share_gradients(draft, calls, replicas, bucket_mb, others)


@dataclass(frozen=True)
class _Shards:
    """Weights in shards over data parallel ranks, those of experts over the ranks that keep the same ones."""

    draft: Draft
    ranks: RankMesh
    experts: int
    own: set[int]
    """Storages of experts' gradients."""
    units: list[str]
    """Modules that are gathered together, of all stages."""
    mixed: bool

    def of(self, calls: list[EditedCall], stage: int, stays: bool) -> list[EditedCall]:
        """The calls of a stage with its weights in shards."""
        modules = {call.op.module for call in calls}
        units = [unit for unit in self.units if any(block_index(module, [unit]) == 0 for module in modules)]
        theirs, ours = self._experts_apart(calls)
        calls = in_shards(self.draft, calls, self.ranks.group(DATA, stage), units, self.mixed, stays, theirs)
        replicas = self.ranks.replicas(stage, self.experts)
        if theirs and replicas.size > 1:
            ours |= weights_of([call.op for call in calls]).storages - theirs
            calls = in_shards(self.draft, calls, replicas, units, self.mixed, stays, ours)
        return calls

    def _experts_apart(self, calls: list[EditedCall]) -> tuple[set[int], set[int]]:
        """What the optimizer knows of experts, and of all the rest: weights, gradients and states."""
        if not self.own:
            return set(), set()
        ops = [call.op for call in calls]
        of_expert = {storage: storage in self.own for storage in weights_of(ops).storages}
        propagate_owners(
            [call.op for call in calls if call.op.phase == "optimizer" and call.collective is None], of_expert
        )
        known = set(of_expert)
        theirs = {storage for storage in known if of_expert[storage]}
        return theirs, known - theirs


def _moved(call: EditedCall, ranks: RankMesh, stage: int, experts: int) -> EditedCall:
    """A call with the groups of its stage."""
    if call.collective is None or call.collective.group not in (TENSOR, EXPERTS):
        return call
    group = ranks.group(call.collective.group, stage, experts)
    return replace(call, collective=replace(call.collective, ranks=group.ranks))


def _told(ranks: RankMesh, overlap: bool, sequence: bool, sharded: bool | Sequence[str], bucket_mb: float) -> list[str]:
    ways = [f"{n} {word}" for n, word in ((ranks.tensor, "tensor"), (ranks.data, "data")) if n > 1]
    if not ways:
        return []
    said = [f"parallel over {' x '.join(ways)} ranks"]
    if sequence:
        said.append("sequences divided")
    if overlap:
        said.append("gradients of inputs summed beside products")
    if sharded:
        said.append("weights in shards")
    elif ranks.data > 1:
        said.append("one bucket" if bucket_mb == inf else f"buckets of {bucket_mb:g} MB")
    return [", ".join([*said, "made from the step of one rank"])]
