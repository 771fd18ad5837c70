"""On a pretended GPU functions call the ops that PyTorch's source has for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as imported_before

from foretrace.graph import Graph, Op, Tensor
from foretrace.record.sketch.sketch import sketch
from foretrace.record.watch.watch import Watch
from tests.narrowing import instance
from tests.record.sketch.fake_cuda import called_by_torch, called_in_a_sketch

pytestmark = pytest.mark.skipif(bool(torch.version.cuda), reason="a build with CUDA has fake CUDA tensors")


def cuda(step: Callable[[], Any], **options: Any) -> Graph:
    return sketch(step, device="cuda", **options)


def names(graph: Graph, *parts: str) -> list[str]:
    return [op.name.removeprefix("aten::") for op in graph.ops if any(part in op.name for part in parts)]


def training(make: Callable[[], nn.Module], *shape: int, **options: Any) -> Callable[[], Any]:
    """A step of a model on the GPU with AdamW."""

    def build() -> Callable[[], None]:
        model = make().to("cuda")
        given = torch.randn(*shape, device="cuda", **options)
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            optimizer.zero_grad()
            made = model(given)
            (made[0] if isinstance(made, tuple) else made).float().mean().backward()
            optimizer.step()

        return step

    return build


RECURRENT: dict[str, tuple[type[nn.Module], dict[str, Any], int]] = {
    "LSTM": (nn.LSTM, {"num_layers": 2, "dropout": 0.1}, 2),
    "LSTM both ways": (nn.LSTM, {"bidirectional": True, "batch_first": True}, 2),
    "projected LSTM": (nn.LSTM, {"proj_size": 3}, 2),
    "GRU": (nn.GRU, {"num_layers": 2}, 3),
    "RNN": (nn.RNN, {"nonlinearity": "tanh"}, 1),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_network_is_one_call_of_cudnn(name: str) -> None:
    kind, options, mode = RECURRENT[name]
    graph = cuda(training(lambda: kind(8, 16, **options), 5, 4, 8))
    assert names(graph, "rnn") == ["_cudnn_rnn", "_cudnn_rnn_backward"]
    (forward,) = [op for op in graph.ops if op.name == "aten::_cudnn_rnn"]
    assert forward.args[6] == mode
    count = len(list(kind(8, 16, **options).parameters()))
    weights = [instance(Tensor, weight) for weight in instance(list, forward.args[1])]
    buffer = instance(Tensor, forward.args[3])
    assert len(weights) == count and {w.storage for w in weights} == {buffer.storage}, "one buffer holds the weights"
    backward = next(op for op in graph.ops if op.name == "aten::_cudnn_rnn_backward")
    assert [t.shape for t in backward.produced[-count:]] == [w.shape for w in weights]
    assert "aten::_foreach_addcdiv_" in {op.name for op in graph.ops}, "and the weights are still on the GPU"


@pytest.mark.parametrize(("kind", "layers", "both", "reserved"), [
    (nn.LSTM, 2, False, 11 * 3 * 5 * 16 * 4 + 256), (nn.GRU, 2, True, 26 * 3 * 5 * 16 * 4 + 256)
])  # fmt: skip
def test_cudnn_makes_time_first_and_reserves_what_recordings_show(
    kind: Any, layers: int, both: bool, reserved: int
) -> None:
    network = training(lambda: kind(8, 16, layers, bidirectional=both, batch_first=True), 3, 5, 8)
    forward, backward = (op for op in cuda(network).ops if op.name.startswith("aten::_cudnn_rnn"))
    width = 16 * (1 + both)
    assert forward.produced[0].stride == (width, 3 * width, 1) and backward.tensors[-1].shape == (reserved,)


def test_under_autocast_the_weights_of_a_recurrent_network_are_cast_into_one_buffer() -> None:
    def build() -> Callable[[], None]:
        network, x = nn.GRU(8, 16).to("cuda"), torch.randn(5, 3, 8, device="cuda")

        def step() -> None:
            with torch.autocast("cuda", torch.bfloat16):
                made = network(x)[0]
            made.sum().backward()

        return step

    graph = cuda(build)
    shorts = [op.name.removeprefix("aten::") for op in graph.ops]
    place = shorts.index("_cudnn_rnn")
    assert shorts[1:place] == [
        *("empty", "set_", "zeros"), *("empty", "set_") * 4, *("view", "copy_") * 4, *("_to_copy",) * 2
    ]  # fmt: skip
    assert [t.shape for t in graph.ops[place].tensors[1:5]] == [(384, 1), (768, 1), (48, 1), (48, 1)]
    after = [op.name for op in graph.ops if op.node == "torch::autograd::CopyBackwards"]
    assert after == ["aten::_to_copy"] * 4


def test_weights_that_are_flattened_in_the_step_are_flattened_by_a_call() -> None:
    class Flattening(nn.LSTM):
        def forward(self, given: Any, hidden: Any = None) -> Any:
            self.flatten_parameters()
            return super().forward(given, hidden)

    graph = cuda(training(lambda: Flattening(8, 16), 5, 4, 8))
    assert names(graph, "rnn") == ["_cudnn_rnn_flatten_weight", "_cudnn_rnn", "_cudnn_rnn_backward"]


CELLS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str, int]] = {
    "LSTM": (lambda: nn.LSTM(8, 16, 2, bidirectional=True, dropout=0.1), (5, 3, 8), "_thnn_fused_lstm_cell", 20),
    "projected LSTM": (lambda: nn.LSTM(8, 16, proj_size=4, batch_first=True), (5, 3, 8), "_thnn_fused_lstm_cell", 3),
    "GRU": (lambda: nn.GRU(8, 16, bias=False), (5, 3, 8), "_thnn_fused_gru_cell", 5),
    "RNN": (lambda: nn.RNN(8, 16), (5, 3, 8), "tanh", 5),
    "LSTMCell": (lambda: nn.LSTMCell(8, 16), (3, 8), "_thnn_fused_lstm_cell", 1),
    "GRUCell": (lambda: nn.GRUCell(8, 16), (3, 8), "_thnn_fused_gru_cell", 1),
}


@pytest.mark.parametrize("name", CELLS)
def test_in_bfloat16_which_cudnn_does_not_take_each_step_is_a_fused_cell(name: str) -> None:
    make, shape, cell, count = CELLS[name]
    graph = cuda(training(lambda: make().to(torch.bfloat16), *shape, dtype=torch.bfloat16))
    ops = [op.name.removeprefix("aten::") for op in graph.ops]
    assert ops.count(cell) == count and not names(graph, "cudnn_rnn", "mkldnn")
    assert sum(name.startswith(f"{cell}_backward") for name in ops) == count


def test_rms_norm_is_one_kernel_each_way() -> None:
    graph = cuda(training(lambda: nn.RMSNorm(16), 4, 16))
    assert names(graph, "rms") == ["_fused_rms_norm", "_fused_rms_norm_backward"]
    backward = next(op for op in graph.ops if op.name.endswith("rms_norm_backward"))
    assert [t.shape for t in backward.produced] == [(16,)], "the input needs no gradient"
    forward = next(op for op in graph.ops if op.name == "aten::_fused_rms_norm")
    assert [(t.shape, t.dtype) for t in forward.produced] == [((4, 16), "float32"), ((4, 1), "float32")]


def test_rms_norm_of_mixed_dtypes_is_taken_apart_and_autocast_casts_it_to_float32() -> None:
    def build() -> Callable[[], None]:
        norm, given = nn.RMSNorm(16, device="cuda"), torch.randn(4, 16, device="cuda", dtype=torch.bfloat16)

        def step() -> None:
            norm(given)
            with torch.autocast("cuda", torch.bfloat16):
                assert norm(given).dtype == torch.float32

        return step

    ops = names(cuda(build), "rms", "rsqrt")
    assert ops == ["rsqrt", "_fused_rms_norm"]


NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "of a matrix": (lambda: nn.BatchNorm1d(8), (4, 8), "native_batch_norm"),
    "of images": (lambda: nn.BatchNorm2d(8), (4, 8, 5, 5), "cudnn_batch_norm"),
    "of images in evaluation": (lambda: nn.BatchNorm2d(8).eval(), (4, 8, 5, 5), "cudnn_batch_norm"),
    "without statistics": (lambda: nn.BatchNorm2d(8, track_running_stats=False), (4, 8, 5, 5), "cudnn_batch_norm"),
    "without weights": (lambda: nn.BatchNorm2d(8, affine=False), (4, 8, 5, 5), "native_batch_norm"),
    "of each example": (lambda: nn.InstanceNorm2d(8, affine=True), (4, 8, 5, 5), "cudnn_batch_norm"),
}


@pytest.mark.parametrize("name", NORMS)
def test_batch_norm_is_cudnns_where_it_takes_the_call(name: str) -> None:
    make, shape, expected = NORMS[name]

    def build() -> Callable[[], Any]:
        norm, given = make().to("cuda"), torch.randn(*shape, device="cuda")
        return lambda: norm(given)

    assert names(cuda(build), "batch_norm") == [expected]


def attentions(call: Callable[[torch.Tensor, torch.Tensor], Any], dtype: torch.dtype = torch.bfloat16) -> list[str]:
    """Ops of an attention of 4 heads with keys and values of 2."""

    def step() -> None:
        query = torch.randn(2, 4, 16, 64, device="cuda", dtype=dtype)
        call(query, torch.randn(2, 2, 16, 64, device="cuda", dtype=dtype))

    found = names(cuda(step), "_scaled_dot_product", "_safe_softmax", "repeat", "clone")
    return [name.removeprefix("_scaled_dot_product_").removesuffix("_attention") for name in found]


CONTEXTS = {
    SDPBackend.FLASH_ATTENTION: "flash",
    SDPBackend.EFFICIENT_ATTENTION: "efficient",
    SDPBackend.CUDNN_ATTENTION: "cudnn",
    SDPBackend.MATH: "_safe_softmax",
}


@pytest.mark.parametrize("chosen", CONTEXTS)
def test_a_context_chooses_the_attention(chosen: SDPBackend) -> None:
    def attend(query: torch.Tensor, _: torch.Tensor) -> None:
        with sdpa_kernel(chosen):
            F.scaled_dot_product_attention(query, query, query)

    assert attentions(attend) == [CONTEXTS[chosen]]


def test_a_context_may_set_the_order_of_attentions() -> None:
    def attend(query: torch.Tensor, _: torch.Tensor) -> None:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION], set_priority=True):
            F.scaled_dot_product_attention(query, query, query)

    before = torch._C._get_sdp_priority_order()
    assert attentions(attend) == ["flash"]
    assert torch._C._get_sdp_priority_order() == before


def test_fewer_heads_of_keys_are_not_copied_for_cudnn_and_are_without_it() -> None:
    def attend(query: torch.Tensor, keys: torch.Tensor) -> None:
        imported_before(query, keys, keys, enable_gqa=True)

    assert attentions(attend) == ["cudnn"]
    assert attentions(attend, torch.float32) == ["clone", "clone", "_safe_softmax"]


def test_arguments_may_be_given_by_name() -> None:
    def step() -> None:
        q = torch.randn(1, 2, 8, 64, device="cuda", dtype=torch.bfloat16)
        F.scaled_dot_product_attention(query=q, key=q, value=q, is_causal=True)
        ids = torch.zeros(3, dtype=torch.int64, device="cuda")
        F.one_hot(input=ids, num_classes=4)  # type: ignore[call-arg]

    assert names(cuda(step), "attention", "scatter") == ["_scaled_dot_product_cudnn_attention", "scatter_"]


def test_attention_that_was_imported_before_is_the_gpus_and_after_the_sketch_the_cpus() -> None:
    inside: dict[str, Any] = {}

    def step() -> None:
        exec("from torch.nn.functional import scaled_dot_product_attention as kept", inside)
        heads = torch.randn(1, 2, 8, 64, device="cuda", dtype=torch.bfloat16)
        imported_before(heads, heads, heads)
        inside["kept"](heads, heads, heads)

    assert names(cuda(step), "_scaled_dot_product") == ["_scaled_dot_product_cudnn_attention"] * 2
    real = torch.randn(1, 2, 8, 64)
    torch.testing.assert_close(inside["kept"](real, real, real), F.scaled_dot_product_attention(real, real, real))


def test_attention_on_the_cpu_of_a_machine_with_a_gpu_is_the_cpus() -> None:
    def step() -> None:
        heads = torch.randn(1, 2, 8, 64)
        F.scaled_dot_product_attention(heads, heads, heads)

    assert names(cuda(step), "_scaled_dot_product") == ["_scaled_dot_product_flash_attention_for_cpu"]


LAYOUTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "group norm": lambda x: F.group_norm(x, 4),
    "layer norm": lambda x: F.layer_norm(x, (4, 4)),
    "pooling": lambda x: (
        F.max_pool2d(x, 2),
        F.avg_pool2d(x, 2),
        F.adaptive_avg_pool2d(x, 1),
        F.adaptive_max_pool2d(x, 2),
    ),
    "resampling": lambda x: (F.interpolate(x, scale_factor=2), F.interpolate(x, size=(2, 2), mode="area")),
    "pixel shuffle": lambda x: F.pixel_shuffle(x, 2),
    "padding": lambda x: (F.pad(x, (1, 1, 1, 1)), F.pad(x, (1, 1, 1, 1), mode="reflect")),
    "dropout": lambda x: F.dropout(x, 0.1),
    "softmax": lambda x: x.softmax(1),
    "sums": lambda x: (x.sum(1), x.mean((2, 3)), torch.var_mean(x, 1), x.cumsum(1)),
    "batch norm without weights": lambda x: F.batch_norm(x, None, None, training=True),
    "batch norm in evaluation": lambda x: F.batch_norm(x, x.sum((0, 2, 3)), x.sum((0, 2, 3))),
    "joined": lambda x: torch.cat([x, x], 1),
    "products": lambda x: (x @ x, torch.einsum("bchw,bcij->bhwij", x, x)),
    "embedding bag": lambda x: F.embedding_bag(x.sum((2, 3)).long(), x.sum((0, 2))),
    "histogram": lambda x: torch.histc(x.int(), 4),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", LAYOUTS)
def test_calls_and_layouts_are_those_of_pytorch_for_cuda(name: str, layout: torch.memory_format) -> None:
    def laid_out(ops: list[Op]) -> list[Any]:
        return [(op.name, [(t.shape, t.dtype, t.stride) for t in op.produced]) for op in ops]

    def step(device: str) -> None:
        LAYOUTS[name](torch.empty(2, 8, 4, 4, device=device, memory_format=layout))

    assert laid_out(called_in_a_sketch(step)) == laid_out(called_by_torch(step))


def test_an_encoder_takes_its_fast_path_in_inference() -> None:
    def build() -> Callable[[], None]:
        layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to("cuda").eval()
        given = torch.randn(2, 16, 64, device="cuda")

        def step() -> None:
            with torch.no_grad():
                encoder(given)

        return step

    assert [op.name for op in cuda(build).ops] == ["aten::_transformer_encoder_layer_fwd"] * 2


def test_recomputed_layers_are_the_gpus_too() -> None:
    def build() -> Callable[[], None]:
        layers = nn.Sequential(nn.RMSNorm(8), nn.Dropout(0.1)).to("cuda")
        given = torch.randn(4, 8, device="cuda", requires_grad=True)
        return lambda: torch.utils.checkpoint.checkpoint(layers, given, use_reentrant=False).mean().backward()

    graph = cuda(build)
    assert names(graph, "rms") == ["_fused_rms_norm"] * 2 + ["_fused_rms_norm_backward"]
    assert names(graph, "dropout") == ["native_dropout"] * 2 + ["native_dropout_backward"]


TRANSPOSED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "elu": lambda x, y: (F.elu(x.permute(0, 2, 3, 1)) * y).sum(),
    "layer norm": lambda x, y: F.layer_norm(y, (4,)).mul(x.permute(0, 2, 3, 1)).sum(),
    "mse": lambda x, y: F.mse_loss(x.permute(0, 2, 3, 1), y),
    "huber": lambda x, y: F.huber_loss(x.permute(0, 2, 3, 1), y) + F.smooth_l1_loss(y, x.permute(0, 2, 3, 1)),
    "batch norm": lambda x, y: F.batch_norm(y.permute(0, 3, 1, 2), None, None, training=True).mul(x).sum(),
    "gelu": lambda x, y: (F.gelu(x.permute(0, 2, 3, 1)) * y).sum() + (F.silu(y) * x.permute(0, 2, 3, 1)).sum(),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_gradients_lie_in_memory_as_they_do_on_the_cpu_where_both_devices_are_alike(name: str) -> None:
    def build(device: str) -> Callable[[], None]:
        x = torch.ones(2, 4, 3, 5, device=device, requires_grad=True)
        y = torch.ones(2, 3, 5, 4, device=device, requires_grad=True)

        def step() -> None:
            x.grad = y.grad = None
            TRANSPOSED[name](x, y).backward()

        return step

    def laid_out(ops: Any) -> list[Any]:
        return [
            (op.name, op.produced[0].stride) for op in ops if op.node and op.node != "torch::autograd::AccumulateGrad"
        ]

    step = build("cpu")
    with Watch() as watch:
        step()
    assert laid_out(cuda(lambda: build("cuda")).ops) == laid_out(watch.ops)


def test_what_norms_and_activations_save_is_what_they_save_on_a_gpu() -> None:
    def build() -> Callable[[], None]:
        norm, x = nn.BatchNorm2d(4).to("cuda"), torch.randn(2, 4, 3, 3, device="cuda", requires_grad=True)

        def step() -> None:
            with torch.autocast("cuda", torch.float16):
                F.logsigmoid(norm(x.half())).sum().backward()

        return step

    made = {op.name: [(t.shape, t.dtype) for t in op.produced] for op in cuda(build).ops}
    assert made["aten::cudnn_batch_norm"][1:3] == [((4,), "float32")] * 2
    assert made["aten::log_sigmoid_forward"][1] == ((0,), "float16")


def test_the_gradient_of_a_softmax_that_read_float16_is_in_float16() -> None:
    def build() -> Callable[[], None]:
        x = torch.randn(4, 4, device="cuda", dtype=torch.float16, requires_grad=True)

        def step() -> None:
            x.softmax(-1, dtype=torch.float32).sum().backward()

        return step

    ops = {op.name: op for op in cuda(build).ops}
    assert ops["aten::_softmax"].tensors[0].dtype == "float16" and "aten::_to_copy" not in ops
    assert ops["aten::_softmax_backward_data"].produced[0].dtype == "float16"


def test_a_recomputed_rms_norm_has_no_more_calls_than_pytorchs_own_node() -> None:
    def build() -> Callable[[], None]:
        norm, x = nn.RMSNorm(8).to("cuda"), torch.randn(4, 8, device="cuda", requires_grad=True)
        return lambda: torch.utils.checkpoint.checkpoint(norm, x * 2, use_reentrant=False).sum().backward()

    graph = cuda(build)
    assert names(graph, "detach") == []
    assert [op.node for op in graph.ops if op.name == "aten::_fused_rms_norm_backward"] == ["FusedRmsNormBackward0"]
