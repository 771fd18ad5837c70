from __future__ import annotations

from dataclasses import replace

import pytest

from foretrace.analysis.report import (
    CollectiveRow,
    Communication,
    HotOp,
    QueueDepth,
    RankReport,
    StepReport,
    Straggler,
    TimeRow,
    Unprofiled,
)
from foretrace.report.terminal import print_report
from tests.report.samples import measured_rank, measured_step, predicted_job, predicted_rank, predicted_step


@pytest.fixture
def measured() -> StepReport:
    return measured_step()


@pytest.fixture
def predicted() -> StepReport:
    return predicted_step()


@pytest.fixture
def job() -> StepReport:
    return predicted_job()


def shown(report, page, top=10):
    print_report(report, top, page)
    return page.file.getvalue()


def words(report, page):
    return " ".join(shown(report, page).split())


def test_the_headline_names_the_stragglers(measured, page):
    assert "of the ranks with a trace, rank 0 holds the others back" in words(measured, page)


def test_a_headline_of_all_ranks_speaks_of_all(measured, page):
    measured.missing = []
    assert "with a trace" not in words(measured, page)


def test_waits_that_are_known_of_some_ranks_are_the_least(measured, page):
    measured.missing, measured.ranks[1].wait_ms, measured.ranks[1].communication.wait_ms = [], None, None
    text = words(measured, page)
    assert "at least 1.38 ms waiting for other ranks" in text  # the mean of 0.25 and 2.5
    assert "0.25 – 2.50 ms per rank, for others, of 1 rank unknown; 2 collectives" in text


def test_waits_that_are_known_of_all_ranks_are_no_least(measured, page):
    measured.missing = []
    text = words(measured, page)
    assert "1.58 ms waiting for other ranks" in text and "at least" not in text and "unknown" not in text


def test_the_device_does_not_wait_while_its_host_does(measured, page):
    measured.missing = []
    for rank in measured.ranks:
        rank.wait_ms += 1.0
    text = words(measured, page)
    assert "1.58 ms waiting for other ranks" in text and "on hosts for 1.00 ms of it, mean over ranks" in text


def test_communication_of_which_nothing_is_matched_is_said_with_its_waits(measured, page):
    for rank in measured.ranks:
        rank.wait_ms = rank.communication.wait_ms = None
    measured.collectives, measured.transfer_ms = [], {}
    text = words(measured, page)
    assert "comm 2.00 ms a rank, waiting included: nothing of it is matched across ranks" in text
    assert "waiting for other ranks" not in text


def test_communication_of_one_rank_waits_for_others_unless_there_are_none(measured, page):
    measured.ranks, measured.missing, measured.stragglers = measured.ranks[:1], [1, 2, 3], []
    measured.ranks[0].wait_ms = None
    text = words(measured, page)
    assert "comm 2.00 ms waiting included: the other ranks have no trace here" in text
    assert "Communication: the waits for ranks without a trace are part of it" in text


def test_communication_of_one_rank_alone_has_no_waits(measured, page):
    measured.ranks, measured.missing, measured.stragglers = measured.ranks[:1], [], []
    measured.ranks[0].wait_ms = 0.0
    text = words(measured, page)
    assert "comm 2.00 ms 2 collectives of one rank alone" in text and "part of it" not in text


def test_a_rank_without_a_recorded_device_has_no_zeros_in_the_table(measured, page):
    still = measured.ranks[2]
    still.device_active_ms = still.device_idle_ms = 0.0
    still.wait_ms, still.communication = None, Communication()
    (line,) = [line.split() for line in shown(measured, page).splitlines() if line.split()[:2] == ["2", "12.5"]]
    assert line[2:7] == ["–"] * 5


def test_what_is_gained_without_the_stragglers_stands_over_their_table(measured, page):
    measured.straggler_gain_ms = 1.25
    assert "Stragglers: without these waits the others end 1.25 ms sooner" in shown(measured, page)


def test_several_stragglers_are_named_in_rank_order(measured, page):
    measured.stragglers = [Straggler(rank, 1.0, "late") for rank in (6, 0)]
    assert "ranks 0 and 6 hold the others back" in words(measured, page)


def test_a_device_that_idles_while_nothing_of_the_host_is_recorded_is_not_said_to_wait_for_it(measured, page):
    measured.stragglers = []
    measured.idle_causes, measured.bound = {"no event": measured.device_idle_ms}, None
    text = words(measured, page)
    assert "device idle 36 % of it; most of that time has no events of the host" in text
    assert "host-bound" not in text


def test_without_stragglers_an_idle_device_means_host_bound(measured, page):
    measured.stragglers = []
    assert "host-bound: device idle 36 % of it" in shown(measured, page)


def test_the_longest_cause_of_idle_time_does_not_contradict_what_limits_the_step(measured, page):
    measured.stragglers = []
    measured.idle_causes, measured.bound = {"queued": 2.0, "T1": 1.5, "T2": 1.0}, "host"
    assert "host-bound: device idle 36 % of it, 2.50 ms for the host and 2.00 ms for queued" in words(measured, page)


def test_the_longest_cause_of_a_queue_that_does_not_start_is_said_beside_the_queue(measured, page):
    measured.stragglers = []
    measured.idle_causes, measured.bound = {"T1": 2.0, "queued": 1.5, "latency": 1.0}, "queue"
    assert "2.50 ms from launch to start and 2.00 ms for T1 (between ops)" in words(measured, page)


def test_every_line_fits_eighty_columns_however_long_the_names(measured, page):
    measured.by_op[0].name = "aten::" + "x" * 300
    measured.critical_path[0].name = "void " + "y" * 300 + "<float>(int)"
    measured.stragglers[0].why = "z" * 300
    lines = shown(measured, page).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("xxx…" in line for line in lines)


@pytest.mark.parametrize("name", ["[red]op[/red]", "[/]", "[bold", "a]b[", ":smile:", "<b>op</b>", "../../etc/passwd"])
def test_hostile_names_are_printed_as_they_are(measured, page, name):
    for rows in (measured.by_op, measured.by_module, measured.critical_path):
        rows[0].name = name
    measured.notes = [f"about {name}"]
    measured.source = name
    assert shown(measured, page).count(name) == 5


def test_names_cannot_steer_the_terminal(measured, page):
    measured.by_op[0].name = "op\x1b[2J\nnext"
    measured.source = "trace\r\x1b]0;owned\x07"
    measured.stragglers[0].why = "\x9b31m"
    text = shown(measured, page)
    assert not set(text) & {"\x1b", "\x07", "\r", "\x9b"}
    assert r"op\x1b[2J\nnext" in text


def test_a_view_with_nothing_to_tell_apart_is_left_out(measured, page):
    text = shown(measured, page)
    assert "Time by kernel family" not in text
    assert "Time by phase" in text and "(none)" in text.split("Time by module")[1]


def test_only_as_many_rows_as_asked_for_and_the_rest_is_counted(measured, page):
    text = shown(measured, page, top=5)
    assert "aten::op_4" in text and "aten::op_5" not in text
    assert "… and 7 rows more" in text


def test_a_job_on_the_host_alone_has_no_device_in_its_report(measured, page):
    for rank in measured.ranks:
        rank.device_active_ms = rank.device_idle_ms = 0.0
    measured.device_active_ms = measured.device_idle_ms = measured.device_span_ms = 0.0
    measured.stragglers, measured.queue_depth = [], QueueDepth()
    text = shown(measured, page)
    assert "no device work is recorded in it" in text
    assert "device ms" not in text and "owner" not in text and "idle" not in text


def test_a_trace_with_nothing_but_a_step_is_shown_without_fuss(page):
    assert "the whole trace, 1 rank" in shown(StepReport(step_ms=1.0, ranks=[RankReport(0, 1.0)]), page)


def test_of_many_measured_ranks_those_that_wait_least_and_most_are_shown(measured, page):
    measured.ranks = [measured_rank(rank, 10.0, 5.0, float(rank)) for rank in range(64)]
    text = shown(measured, page)
    assert "16 of 64 ranks" in text
    ranks = text.split("wait least and most")[1].split("Stragglers")[0].splitlines()[2:]
    assert [int(line.split()[0]) for line in ranks if line.strip()] == [*range(8), *range(56, 64)]


def test_host_time_is_named_by_what_it_is_of(measured, page):
    measured.by_family = [replace(measured.by_op[0], name=name) for name in ("lookup", "copy")]
    lines = shown(measured, page).splitlines()
    heads = {line.split()[0]: line for line in lines if "device ms" in line}
    assert "call ms" in heads["op"] and "launch ms" in heads["kernel"] and "host ms" in heads["phase"]


def test_a_recording_tells_the_unprofiled_step_and_what_profiling_cost(measured, page):
    measured.unprofiled, measured.profiling_overhead = Unprofiled(9.5, 8.25), 1.3125
    text = words(measured, page)
    assert "unprofiled 9.50 ms with a sync per step, 8.25 ms back to back" in text
    assert "the profiled step takes 1.31 times as long" in text


def test_the_step_comes_first_with_its_range_and_what_limits_it(predicted, page):
    lines = shown(predicted, page).splitlines()
    assert lines[0] == "train.py on h200"
    assert "5.60 ms" in lines[1] and "(80 %: 5.20 – 6.10) host-bound: device idle 71 % of it" in lines[1]


def test_no_number_stands_without_how_it_is_known(predicted, page):
    assert "97.1 % of the device time is modelled, 2.9 % by roofline" in words(predicted, page)


def test_the_largest_families_are_named(predicted, page):
    assert "matrix product 41 %, lookup 22 %, copy 14 %," in words(predicted, page)


def test_memory_that_does_not_fit_stands_out(predicted, page):
    assert "fits in" in shown(predicted, page)
    predicted.fits = False
    assert "does NOT fit in" in shown(predicted, page)


def test_what_is_not_known_is_left_out(predicted, page):
    predicted.peak_memory_bytes = predicted.mfu = None
    predicted.coverage = {"measured": 0.0, "model": 0.0, "fallback": 0.0}
    text = shown(predicted, page)
    assert "memory" not in text and "MFU" not in text and "nothing to do" in text


def test_idle_time_is_explained_by_its_causes_largest_first(predicted, page):
    text = shown(predicted, page).split("Why the device idles 4.00 ms")[1].split("Critical path")[0]
    assert text.index("op start to first launch") < text.index("between ops") < text.index("in launch calls")
    assert "last launch to op end" not in text


def test_ops_to_look_at_are_named_with_why(predicted, page):
    text = shown(predicted, page).split("Look at these first")[1]
    assert "aten::index_put_" in text and "host" in text


def test_a_step_without_kernels_says_so(predicted, page):
    predicted.kernels, predicted.device_active_ms, predicted.by_family = 0, 0.0, []
    assert "all of it on the host" in shown(predicted, page)


def test_communication_is_shown_where_there_is_some(predicted, page):
    assert "comm" not in shown(predicted, page)
    predicted.exposed_communication_ms, predicted.hidden_communication_ms = 0.25, 1.5
    assert "0.250 ms" in shown(predicted, page)


def test_hostile_names_of_a_prediction_are_only_names(predicted, page):
    predicted.source = "[red]\x1b[2J"
    predicted.look_at = [HotOp("[/]", "backward", 0.9, 0.16, 1, 3, 0.9, 0.1, "host")]
    text = shown(predicted, page)
    assert r"[red]\x1b[2J" in text and "[/]" in text


def test_a_job_shows_which_rank_waits_for_which_and_why(job, page):
    text = words(job, page)
    assert text.startswith("train.py on h200, 2 ranks")
    assert "rank 1 holds them back" in text and "slow host" in text
    assert "host 80 %, transfer 20 %; 80 % on rank 1" in text
    assert "next" not in text, "it is not known"


def test_ranks_alike_share_a_line(job, page):
    job.ranks[0].stands_for = 64
    assert "0 and 63 more" in shown(job, page)


def test_of_many_predicted_ranks_those_that_wait_least_and_most_are_shown(job, page):
    job.ranks = [predicted_rank(number, float(number)) for number in range(100)]
    assert "The 16 of 100 ranks that wait least and most" in shown(job, page)


def test_ranks_without_devices_have_no_columns_of_devices(job, page):
    still = {"device_span_ms": 0.0, "device_active_ms": 0.0, "bubble_ms": 0.0}
    job.ranks = [predicted_rank(0, 1.2, **still), predicted_rank(1, 0.0, **still)]
    (head,) = [line.split() for line in shown(job, page).splitlines() if line.startswith("rank  step ms")]
    assert head == ["rank", "step", "ms", "waits", "exposed", "host"]


def test_a_trace_without_times_shows_what_is_called_and_no_zeros(page):
    rows = [TimeRow("aten::mm", 0.0, 0.0, 2, 0.0), TimeRow("aten::view", 0.0, 0.0, 5, 0.0)]
    collectives = [CollectiveRow("all_reduce", 1 << 20, 3, 0.0, 0.0, 0.0)]
    report = StepReport(ranks=[RankReport(0), RankReport(1)], world=2, by_op=rows, collectives=collectives)
    text = shown(report, page)
    assert "step  unknown" in text and "3 collectives  whose times are unknown" in text
    assert [line.split() for line in text.splitlines() if "aten::" in line] == [["aten::view", "5"], ["aten::mm", "2"]]
    assert "all_reduce  1 MiB      3" in text and "Ranks" not in text and " 0 " not in text
