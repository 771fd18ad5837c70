"""A step of one rank as a job of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from foretrace.graph import Graph, Job
from foretrace.graph.edits.parallel.data import reduced
from foretrace.graph.edits.parallel.draft import Draft, Group, Line, lines_of
from foretrace.graph.edits.parallel.experts import with_experts
from foretrace.graph.edits.parallel.hybrid import tables_on_ranks
from foretrace.graph.edits.parallel.pipeline import of_one_part, pipelined, told
from foretrace.graph.edits.parallel.sharded import sharded as in_shards
from foretrace.graph.edits.parallel.tensor import divided
from foretrace.graph.edits.parallel.ways import Ways
from foretrace.graph.edits.parallel.weights import refuse_sparse, weights_of

TENSOR, DATA, EXPERTS = "tensor", "data", "experts"


@dataclass(frozen=True)
class Ranks:
    """Where each rank stands: ranks of one tensor group are neighbours, then come data parallel ones, then stages.

    >>> Ranks(tensor=2, data=4, pipeline=2).at(stage=1, data=3, tensor=1)
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

    def group(self, name: str, stage: int, experts: int = 1) -> Group:
        """The group of that name in which the first rank of a stage is."""
        if name == TENSOR:
            return Group(name, tuple(self.at(stage, 0, t) for t in range(self.tensor)))
        count = experts if name == EXPERTS else self.data
        return Group(name, tuple(self.at(stage, d, 0) for d in range(count)))

    @property
    def alike(self) -> dict[int, int]:
        """For each rank but the first of its stage, that one."""
        each = self.tensor * self.data
        return {rank: rank - rank % each for rank in range(self.world) if rank % each}


def parallelize(
    graph: Graph,
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
    bucket_mb: float = 25.0,
) -> Job:
    """The job that many ranks make of the step of one: nothing runs, and no cluster is needed.

    Parameters
    ----------
    graph
        The step of one rank: a sketch or a recording.
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
        are gathered together.
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
    Ways(
        data, tensor, pipeline, overlap, sequence, sharded, mixed, experts, tables, microbatches, schedule, chunks,
        bucket_mb,
    )  # fmt: skip
    if tables:
        return tables_on_ranks(graph, data, bucket_mb=bucket_mb)
    ranks = Ranks(tensor, data, pipeline)
    draft = lines_of(graph, "parallelize")
    if data > 1:
        refuse_sparse(draft.ops, graph.source)
    notes = _told(ranks, sharded, bucket_mb)
    lines, own = draft.lines, set[int]()
    in_parts = pipeline > 1 or microbatches > 1
    if in_parts:
        lines = of_one_part(draft, lines, microbatches)
        notes.append(told(pipeline, microbatches, schedule, chunks))
    if tensor > 1:
        lines = divided(draft, lines, ranks.group(TENSOR, 0), overlap, sequence)
    if experts > 1:
        lines, own = with_experts(draft, lines, ranks.group(EXPERTS, 0, experts))
    if sharded:  # each part of the batch gathers and scatters anew
        lines = in_shards(draft, lines, ranks.group(DATA, 0), None if sharded is True else list(sharded), mixed)
    firsts = tuple(ranks.at(stage) for stage in range(pipeline))
    staged = pipelined(draft, lines, firsts, microbatches, schedule, chunks) if in_parts else [lines]
    graphs = []
    for stage, ours in enumerate(staged):
        ours = [_moved(line, ranks, stage, experts) for line in ours]
        if data > 1 and not sharded:
            ours = _with_gradients(draft, ours, ranks, stage, own, experts, bucket_mb)
        graphs.append(draft.graph_of(ours, ranks.at(stage), ranks.world, "; ".join(notes)))
    return Job(graphs, graph.source, alike=ranks.alike)


def _with_gradients(
    draft: Draft, lines: list[Line], ranks: Ranks, stage: int, own: set[int], experts: int, bucket_mb: float
) -> list[Line]:
    """The lines with gradients shared: those of experts among the ranks that keep the same ones."""
    lines = reduced(draft, lines, ranks.group(DATA, stage), bucket_mb, own)
    replicas = Group("expert replicas", ranks.group(DATA, stage).ranks[::experts])
    if not own or replicas.size == 1:
        return lines
    others = weights_of([line.op for line in lines]).storages - own
    return reduced(draft, lines, replicas, bucket_mb, others)


def _moved(line: Line, ranks: Ranks, stage: int, experts: int) -> Line:
    """A line with the groups of its stage."""
    if line.collective is None or line.collective.group not in (TENSOR, EXPERTS):
        return line
    group = ranks.group(line.collective.group, stage, experts)
    return replace(line, collective=replace(line.collective, ranks=group.ranks))


def _told(ranks: Ranks, sharded: bool | Sequence[str], bucket_mb: float) -> list[str]:
    ways = [f"{n} {word}" for n, word in ((ranks.tensor, "tensor"), (ranks.data, "data")) if n > 1]
    how = ", weights in shards" if sharded else f", buckets of {bucket_mb:g} MB" if ranks.data > 1 else ""
    return [f"parallel over {' x '.join(ways)} ranks{how}, made from the step of one rank"] if ways else []
