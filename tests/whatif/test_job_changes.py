"""Changes of whole jobs: how ranks share a step, how many they are, how they reduce gradients."""

from __future__ import annotations

from functools import partial

import pytest

import gpt
from foretrace.graph import ForetraceError, Job
from foretrace.record.sketch.sketch import sketch
from foretrace.transforms.fusion.ddp_buckets import buckets
from foretrace.transforms.parallel.parallelize import parallelize
from foretrace.transforms.resize.batch_sequence import batch
from foretrace.whatif.changes import EditedJob, JobChanges
from foretrace.whatif.grammar import Change, read_changes
from tests.transforms.agreement import assert_same, sketched
from tests.transforms.parallel.steps import exchanged, gpt_step, told
from tests.transforms.parallel.test_parallelize import accumulating


def arranged(graph, *changes):
    """The job after some changes, and the samples of its step."""
    edited, read = EditedJob(Job([graph], graph.source)), read_changes(changes)
    job = edited.by(read)
    return job, edited.samples(read, job)


def test_a_step_is_changed_before_it_is_shared():
    job, samples = arranged(gpt_step(), "data=4", "batch=16", "buckets=0.05")
    truth = parallelize(batch(gpt_step(), 16), data=4, bucket_mb=0.05)
    assert samples == 64 and job.world == 4 and job.alike == truth.alike
    assert told(job.graphs[0]) == told(truth.graphs[0])


def test_as_many_data_parallel_ranks_as_there_is_room_for():
    job, samples = arranged(gpt_step(), "world=8", "tensor=2")
    assert job.world == 8 and samples == 8 * 4
    assert told(job.graphs[0]) == told(parallelize(gpt_step(), data=4, tensor=2).graphs[0])


def test_shards_go_together_with_tensor_parallel_reductions_that_overlap():
    job, _ = arranged(gpt_step(), "data=2", "tensor=2", "sequence=on", "sharded=on", "overlap=on")
    truth = parallelize(gpt_step(), data=2, tensor=2, sequence=True, sharded=True, overlap=True)
    assert told(job.graphs[0]) == told(truth.graphs[0])
    with pytest.raises(ForetraceError, match="not in buckets"):
        JobChanges.of(read_changes(["data=2", "sharded=on", "overlap=on"]))


def test_ranks_without_data_parallel_ones_share_one_batch():
    assert arranged(gpt_step(), "tensor=2")[1] == 8
    assert arranged(gpt_step(), "pipeline=2", "microbatches=4")[1] == 8


def test_a_step_that_adds_up_gradients_has_the_samples_of_all_its_micro_batches():
    own = sketch(partial(accumulating, 2, 4), device="cuda")
    assert arranged(own)[1] == 8
    assert arranged(own, "batch=16")[1] == arranged(own, "batch=32/8")[1] == 32
    assert_same(arranged(own, "batch=32/8")[0].graphs[0], arranged(own, "batch=16")[0].graphs[0])
    with pytest.raises(ForetraceError, match="9 can't be divided between the 2 micro-batches"):
        arranged(own, "batch=9/8")
    divided = sketched(gpt, batch=8, options={"accumulate": 2})  # which loads the batch of a step at once
    assert arranged(divided)[1] == 8


def test_a_job_under_ddp_gets_other_buckets_and_more_ranks():
    job, samples = arranged(gpt_step(8, ddp=True), "buckets=0.05", "world=64")
    (graph,) = job.graphs
    assert job.world == 64 and samples == 8 * 64
    assert exchanged(graph) == exchanged(buckets(gpt_step(8, ddp=True), 0.05))
    assert {c.ranks for c in graph.collectives} == {tuple(range(64))}


def test_shards_follow_the_number_of_ranks():
    job, samples = arranged(gpt_step(8, fsdp=True), "batch=16", "world=64")
    assert job.world == 64 and samples == 16 * 64
    assert_same(job.graphs[0], gpt_step(64, batch=16, fsdp=True))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (["world=8", "tensor=3"], "tensor=3 does not divide 8 ranks"),
        (["world=8", "data=4", "tensor=4"], "data=4 x tensor=4 makes 16 ranks, not 8. Leave out world or set data=2"),
        (["data=8", "sharded=on", "buckets=100"], "weights in shards are scattered"),
        (["tensor=2", "buckets=100"], "one rank alone shares no"),
        (["sequence=on", "data=2"], "sequence needs tensor parallel ranks"),
    ],
)
def test_changes_that_contradict_each_other_are_refused(changes, why):
    with pytest.raises(ForetraceError, match=why):
        JobChanges.of(read_changes(changes))


@pytest.mark.parametrize(
    "text", ["tensor=0", "world=many", "buckets=-1", "buckets=nan", "overlap=maybe", "schedule=2f2b"]
)
def test_a_word_that_makes_no_sense_is_refused(text):
    with pytest.raises(ForetraceError):
        Change.read(text)


def test_a_job_of_several_ranks_is_not_shared_again():
    job = Job([gpt_step(), gpt_step()])
    with pytest.raises(ForetraceError, match="has 2 ranks: it is parallel already"):
        EditedJob(job).by(read_changes(["data=2"]))
