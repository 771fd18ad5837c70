import numpy as np
import pytest

from foretrace.cost_models.kernels.estimators.dataset import Dataset
from foretrace.cost_models.kernels.exact import short_name
from foretrace.cost_models.kernels.families import FAMILIES
from foretrace.cost_models.kernels.model import KernelSequences
from foretrace.cost_models.kernels.reliability import Support


@pytest.fixture(scope="module")
def sequences() -> KernelSequences:
    """Small calls launch one kernel, large ones split the work and add up."""
    size = np.arange(200.0)
    kernels = [
        [("void gemm<64>", 9.0)] if n < 100 else [("void gemm<64>", 6.0), ("void splitK(int)", 2.0)] for n in size
    ]
    calls = Dataset(size[:, None], size, size, np.ones((200, 2)), kernels)
    return KernelSequences(FAMILIES["matrix"]).fit(calls)


def test_the_sequence_follows_the_features(sequences):
    small, large = sequences.predict(np.array([[10.0], [150.0]]))
    assert small[0] == ("gemm",)
    assert large == (("gemm", "splitK"), (0.75, 0.25))


def test_arrays_make_the_same_sequences(sequences):
    again = KernelSequences.from_arrays({**sequences.arrays(), "columns": np.array(["size"])}, FAMILIES["matrix"])
    rows = np.array([[10.0], [150.0]])
    assert again.predict(rows) == sequences.predict(rows)
    assert (again.kernels_, again.shares_) == (sequences.kernels_, sequences.shares_)


def test_kernels_of_a_recurrent_network_grow_with_its_steps():
    recurrent = FAMILIES["recurrent"]
    features = np.ones((60, len(recurrent.columns)))
    features[:, recurrent.columns.index("steps")] = np.log2(np.arange(60) % 3 + 2)
    kernels = [[("copy", 4.0)] + [("gemm", 2.0), ("cell", 1.0)] * (n % 3 + 2) for n in range(60)]
    calls = Dataset(features, np.ones(60), np.ones(60), np.ones((60, 2)), kernels)
    longer = features[:1].copy()
    longer[:, recurrent.columns.index("steps")] = np.log2(100)
    ((launched, shares),) = KernelSequences(recurrent).fit(calls).predict(longer)
    assert (launched.count("copy"), launched.count("gemm"), launched.count("cell")) == (1, 100, 100)
    assert sum(shares) == pytest.approx(1.0, abs=1e-3)


def test_a_file_that_has_kernels_run_without_end_is_refused(sequences):
    arrays = {**sequences.arrays(), "columns": np.array(["size"])}
    text = arrays["pattern.sequences"].tobytes().replace(b'"times": [[0.0]', b'"times": [[1e9]')
    with pytest.raises(ValueError, match="too often"):
        KernelSequences.from_arrays({**arrays, "pattern.sequences": np.frombuffer(text, np.uint8)}, FAMILIES["matrix"])


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_execute_kernel__5x_cublas", "sm80_xmma_gemm"),
        ("void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_nn_align1>(Params)", "cutlass"),
        ("void (anonymous namespace)::softmax_warp_forward<float>(float*)", "softmax_warp_forward"),
        ("Memcpy DtoD (Device -> Device)", "DtoD"),
    ],
)
def test_names_lose_what_differs_from_shape_to_shape(kernel, name):
    assert short_name(kernel) == name


def test_calls_outside_of_what_was_measured_in_any_feature_are_told():
    measured = np.array([[0.0, 4.0, 1.0], [0.0, 10.0, 1.0], [1.0, 30.0, 2.0]])
    support = Support.of(measured)
    asked = np.array([[0.0, 7.0, 1.0], [0.0, 10.5, 1.0], [0.0, 11.0, 1.0], [0.0, 7.0, 2.0], [1.0, 7.0, 2.0], [2.0] * 3])
    assert support.holds(asked).tolist() == [True, True, False, False, False, False]
