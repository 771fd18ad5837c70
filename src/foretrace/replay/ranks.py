"""A benchmark of a whole job: a step for each rank, in one folder."""

from __future__ import annotations

import json
from pathlib import Path

from foretrace.graph import ForetraceError, Graph, Job
from foretrace.replay.about import about
from foretrace.replay.folder import Choices, files_of, write_benchmark, write_files
from foretrace.replay.groups import all_groups, groups_of


def write_job(job: Job, out: Path, choices: Choices) -> Path:
    """Write a benchmark of a job's ranks; of a single one, the benchmark of that one."""
    graphs = _chosen(job, choices.ranks)
    if len(graphs) == 1:
        return write_benchmark(graphs[0], out, choices)
    kept = [graph.rank for graph in graphs]
    made = [files_of(graph, choices, kept) for graph in graphs]
    files: dict[str, str] = {}
    places: list[dict[str, str]] = []
    first: dict[tuple[str, str], str] = {}
    for rank, of_rank in zip(kept, made):
        folder = f"rank-{rank}"
        places.append({name: first.setdefault((name, text), folder) for name, text in of_rank.own.items()})
        files.update({f"{folder}/{name}": text for name, text in of_rank.own.items() if places[-1][name] == folder})
    facts = {"ranks": places, "groups": all_groups(groups_of(of_rank.plan) for of_rank in made)}
    files["ranks.json"] = json.dumps(facts, indent=1) + "\n"
    source = "" if choices.obfuscate else job.source
    files["README.md"] = about(made[0].plan, made[0].stand_ins, source, len(made))
    return write_files(files, out)


def _chosen(job: Job, ranks: int | None) -> list[Graph]:
    """The first so many ranks of a job."""
    there = len(job.graphs)
    if ranks is not None and ranks < 1:
        raise ForetraceError(f"{ranks} ranks are none to replay", f"Ask for --ranks 1 to {there}, or leave it out.")
    if ranks is not None and ranks > there:
        has = "one rank" if there == 1 else f"{there} ranks"
        raise ForetraceError(f"{job.source} has {has}, not {ranks}", "Ask for fewer --ranks.")
    return job.graphs[:ranks]
