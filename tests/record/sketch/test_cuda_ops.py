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
