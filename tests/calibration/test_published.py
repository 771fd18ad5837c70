"""Platforms of tables that others published."""

from __future__ import annotations

import json

import numpy as np
import pytest

from foretrace.calibration.fabric import import_collectives, published_tables
from foretrace.calibration.published import _baseline, import_tables, priced_us
from foretrace.calibration.published_tables import PublishedTime, read_published
from foretrace.cost_models.kernels.ratios import grouped_linear, linear
from foretrace.errors import ForetraceError
from foretrace.platform.platform import Platform
from foretrace.platform.registry import find_fabric, load_platform
from tests.cli.conftest import foretrace  # noqa: F401 (a fixture)

SLOWER = 1.5
LAYERS = [(512 * n, 512 * k) for n in range(1, 5) for k in range(1, 5)]
SIZES = [(m, n, k) for n, k in LAYERS for m in (1, 16, 64, 128, 256, 512, 1024, 4096)]


@pytest.fixture(scope="module")
def h200_us():
    return priced_us([linear(*size) for size in SIZES], Platform.named("h200"))


def write_table(folder, times, name="gemm_bf16_h100_sxm_mine-1.0.csv", head="m,n,k,latency_ms"):
    folder.mkdir(exist_ok=True)
    rows = [f"{m},{n},{k},{us / 1e3}" for (m, n, k), us in zip(SIZES, times)]
    (folder / name).write_text("\n".join([head, *rows]) + "\n")
    return folder


def test_a_platform_of_a_table_takes_as_long_as_the_table_says(tmp_path, foretrace, h200_us):  # noqa: F811
    tables = write_table(tmp_path / "tables", SLOWER * h200_us)
    ran = foretrace("calibrate", "import", tables, "--from", "aiconfigurator", "--out", tmp_path / "mine")
    assert ran.code == 0, ran.err
    mine = load_platform(tmp_path / "mine")
    got = priced_us([linear(*size) for size in SIZES], mine)
    assert np.median(got / h200_us) == pytest.approx(SLOWER, rel=0.03)
    shown = foretrace("platform", "show", tmp_path / "mine")
    assert "GEMMs, 16-bit floats" in shown.out and "aiconfigurator (mine-1.0)" in shown.out
    known = json.loads(foretrace("platform", "show", tmp_path / "mine", "--json").out)["tables"]
    assert known["bf16"]["rows"] == len(SIZES) and known["bf16"]["gmae"] < 0.05


def test_times_in_another_unit_are_noticed_by_the_roofline(tmp_path, h200_us):
    fast = write_table(tmp_path / "fast", h200_us / 1e3)
    with pytest.raises(ForetraceError, match=r"line \d+: .* us is faster than h100 can .* in another unit"):
        import_tables(fast, "aiconfigurator", "h100", tmp_path / "mine")
    slow = write_table(tmp_path / "slow", 1e3 * h200_us)
    with pytest.raises(ForetraceError, match=r"times what h100 needs at its peaks.* another unit"):
        import_tables(slow, "aiconfigurator", "h100", tmp_path / "mine")


def test_rows_that_contradict_each_other_are_left_out_and_named(tmp_path, h200_us):
    tables = write_table(tmp_path / "tables", SLOWER * h200_us)
    table = tables / "gemm_bf16_h100_sxm_mine-1.0.csv"
    table.write_text(table.read_text() + f"{SIZES[0][0]},{SIZES[0][1]},{SIZES[0][2]},0.5\n")
    found = import_tables(tables, "aiconfigurator", "h100", tmp_path / "mine")
    assert found.kinds["bf16"].rows == len(SIZES) - 1
    assert any("line 2 and" in note and "1 such calls are left out" in note for note in found.notes)


def test_some_rows_in_another_unit_are_left_out_and_all_named(tmp_path, h200_us):
    times = SLOWER * h200_us
    times[[3, 40, 41]] *= 1000
    times[5] /= 1000
    found = import_tables(write_table(tmp_path / "tables", times), "aiconfigurator", "h100", tmp_path / "mine")
    assert found.kinds["bf16"].rows == len(SIZES) - 4 and found.kinds["bf16"].gmae < 0.05
    assert any("lines 5, 42, 43: more than 30 times off" in note for note in found.notes)
    assert any("line 7: faster than h100 can" in note for note in found.notes)


def test_a_table_that_is_too_short_to_be_fitted_says_so(tmp_path, h200_us):
    tables = write_table(tmp_path / "tables", h200_us)
    table = tables / "gemm_bf16_h100_sxm_mine-1.0.csv"
    table.write_text("\n".join(table.read_text().splitlines()[:21]) + "\n")
    with pytest.raises(ForetraceError, match=r"20 rows of bf16 are too few to fit.*100 rows"):
        import_tables(tables, "aiconfigurator", "h100", tmp_path / "mine")


@pytest.mark.parametrize(
    ("head", "name", "said"),
    [
        ("m,n,size,latency_ms", "gemm_bf16_h100_sxm_mine-1.0.csv", "has no column 'k'"),
        ("m,n,k,latency_ms", "gemm_bf16_h1000_sxm_mine-1.0.csv", "no GPU is called 'h1000'.*Did you mean h100"),
        ("m,n,k,latency_ms", "times.csv", "times.csv does not name its GPU"),
    ],
)
def test_a_table_that_lacks_something_is_refused(tmp_path, h200_us, head, name, said):
    tables = write_table(tmp_path / "tables", h200_us, name, head)
    with pytest.raises(ForetraceError, match=said):
        import_tables(tables, "aiconfigurator", None, tmp_path / "mine")


@pytest.mark.parametrize("source", ["aiconfigurator", "xla", "vidur"])
def test_a_folder_without_a_row_of_what_was_named_says_so(tmp_path, source):
    (tmp_path / "gemm_bf16_h100_sxm_mine-1.0.csv").write_text("m,n,k,latency_ms\n")
    with pytest.raises(ForetraceError, match=f"holds no row of {source}'s tables"):
        import_tables(tmp_path, source, None, tmp_path / "mine")


def test_a_ratio_of_times_of_kernels_with_other_names_says_so():
    ops = [grouped_linear(8 * rows, 8, 256, 256) for rows in range(1, 121)]
    mine, same, other = (
        [PublishedTime("b200", "grouped", op, 400.0, "v-1", (8, 256), f"line {row}", kernels)
         for row, op in enumerate(ops)]
        for kernels in ("trtllm", "trtllm", "triton")
    )  # fmt: skip
    modelled = np.ones(len(ops))
    assert _baseline(mine, same, modelled, "h200")[1] == "the same harness on h200"
    assert _baseline(mine, other, modelled, "h200")[1].endswith("on h200, where its kernels have other names")


def test_a_number_that_is_none_is_said_with_its_row(tmp_path, h200_us):
    tables = write_table(tmp_path / "tables", h200_us)
    (tables / "gemm_bf16_h100_sxm_mine-1.0.csv").write_text("m,n,k,latency_ms\n8,8,8,0.1\n8,8,much,0.1\n")
    with pytest.raises(ForetraceError, match="line 3: k holds 'much'"):
        import_tables(tables, "aiconfigurator", "h100", tmp_path / "mine")


def test_a_folder_of_several_gpus_needs_the_name_of_one(tmp_path, foretrace, h200_us):  # noqa: F811
    tables = write_table(tmp_path / "tables", h200_us)
    write_table(tables, h200_us, "gemm_bf16_l40s_mine-1.0.csv")
    ran = foretrace("calibrate", "import", tables, "--from", "aiconfigurator", "--out", tmp_path / "mine")
    assert ran.code and "has tables of h100, l40s. Name one of them" in ran.err
    ran = foretrace("calibrate", "import", tables, "--from", "aiconfigurator", "--gpu", "b200", "--out", tmp_path / "b")
    assert ran.code and "has no table of b200" in ran.err and not (tmp_path / "b").exists()
    assert "takes the folder of the tables" in foretrace("calibrate", "import", "--out", tmp_path / "mine").err


@pytest.mark.parametrize(
    ("source", "name", "text", "expected"),
    [
        ("xla", "matmul.csv", "device,b,m,n,k,dtypes,us\nsm_90,1,8,16,32,bf16xbf16->bf16,5\n", ("h100", "bf16", 5.0)),
        ("aiter", "a.csv", "kind,gfx,cu_num,M,N,K,us\nbf16,gfx950,256,8,16,32,5\n", ("mi355x", "bf16", 5.0)),
        (
            "aiconfigurator",
            "moe_bf16_b200_sxm_v-1.csv",
            "kernel_source,num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,distribution,"
            "latency_ms\nx,64,512,256,2,8,1,1,even,0.25\n",
            ("b200", "grouped", 250.0),
        ),
        (
            "aiconfigurator",
            "encoder_attention_bf16_l40s_v-1.csv",
            "kernel_source,batch_size,isl,num_heads,head_dim,latency_ms\nvllm_vit_flash_attn_fa2,2,128,8,64,0.01\n",
            ("l40s", "attention", 10.0),
        ),
    ],
)
def test_tables_of_several_projects_are_read(tmp_path, source, name, text, expected):
    (tmp_path / name).write_text(text)
    row = read_published(tmp_path, source)[0]
    assert (row.gpu, row.kind, row.us) == expected


def test_layers_of_vidur_are_its_gemms(shared):
    rows = read_published(shared / "public" / "vidur", "vidur", {"a100"})
    sizes = {tuple(each.shape for each in row.op.tensors) for row in rows if row.us > 0}
    assert ((4096, 4096), (4096, 12288)) in sizes and all(row.kind == "bf16" for row in rows)


def test_tables_of_collectives_make_a_fabric(tmp_path, foretrace):  # noqa: F811
    tables = tmp_path / "tables"
    tables.mkdir()
    rows = "\n".join(f"{size},{10 + size / 1e5}" for size in (2**10, 2**14, 2**18, 2**22, 2**26))
    head = "# gpu: H100 80GB HBM3\n# nranks: 8\n# nodes: 1\n# collective: all_reduce\nsize_bytes,time_us\n"
    (tables / "h100.csv").write_text(head + rows)
    ran = foretrace("calibrate", "import", tables, "--from", "nccl-tests", "--gpu", "h100", "--out", tmp_path / "mine")
    assert ran.code == 0, ran.err
    assert find_fabric(tmp_path / "mine").curves[0].kind == "all_reduce"
    (tables / "a100.csv").write_text(head.replace("H100", "A100") + rows)
    ran = foretrace("calibrate", "import", tables, "--from", "nccl-tests", "--out", tmp_path / "other")
    assert ran.code and "has tables of A100 80GB HBM3, H100 80GB HBM3. Name one" in ran.err
    (tables / "h100.csv").write_text(head.replace("# nranks: 8\n", "") + rows)
    ran = foretrace("calibrate", "import", tables, "--from", "nccl-tests", "--out", tmp_path / "other")
    assert ran.code and "h100.csv is no table of collectives ('nranks')" in ran.err


HEAD = "# gpu: H100 80GB HBM3\n# nranks: 8\n# nodes: 1\n# collective: all_reduce\nsize_bytes,time_us\n"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("67108864,0.3", "line 7: 67,108,864 bytes in 0.3 us are more than the memory of the GPU can do"),
        ("67108864,nan", "line 7: 67108864 bytes in nan us"),
        ("67108864", "line 7: size_bytes and time_us are no numbers"),
    ],
)
def test_a_row_of_collectives_that_can_not_be_is_said(tmp_path, row, said):
    table = tmp_path / "h100.csv"
    table.write_text(f"{HEAD}1024,12.5\n{row}\n")
    with pytest.raises(ForetraceError, match=said):
        published_tables(table)


def test_tables_of_collectives_that_contradict_each_other_are_left_out_and_named(tmp_path):
    tables = tmp_path / "tables"
    tables.mkdir()
    sizes = [2**10, 2**14, 2**18, 2**22, 2**26]
    for name, slower in (("one", 1.0), ("other", 3.0)):
        rows = [f"{size},{(slower if size == 2**18 else 1.0) * (10 + size / 1e5)}" for size in sizes]
        (tables / f"{name}.csv").write_text(HEAD + "\n".join(rows) + "\n")
    notes = import_collectives(tables, "h100", tmp_path / "mine")
    assert any("one.csv" in note and "other.csv" in note and "1 such sizes are left out" in note for note in notes)
    assert [round(size) for size, _ in find_fabric(tmp_path / "mine").curves[0].knots] == [
        size for size in sizes if size != 2**18
    ]
