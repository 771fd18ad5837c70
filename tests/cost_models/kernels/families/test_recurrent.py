from foretrace.cost_models.kernels.families import CallContext, case_number, family_of
from foretrace.cost_models.kernels.families.recurrent import BACKWARD, FORWARD, GATES, LSTM, Recurrent
from foretrace.graph import Op, Tensor
from foretrace.platform.device import Device
from tests.narrowing import present

CONTEXT = CallContext(Device.named("h200"))


def lstm(steps: int, batch: int, hidden: int, layers: int = 1, name: str = FORWARD, first: bool = False) -> Op:
    shape = (batch, steps, hidden) if first else (steps, batch, hidden)
    x, state = Tensor(shape, "float32"), Tensor((layers, batch, hidden), "float32")
    between = (x, x, None, None) if name == BACKWARD else ()
    return Op(
        name, (x, [], 4, None, state, state, *between, LSTM, hidden, 0, layers, first, 0.0, True, False, [], None)
    )


def work(op: Op):
    return Recurrent().describe(op, CONTEXT).work


def test_the_arithmetic_of_an_lstm_is_that_of_its_gates():
    assert work(lstm(10, 4, 32)).flops == 2 * 10 * 4 * GATES[LSTM] * 32 * (32 + 32)
    assert work(lstm(10, 4, 32, name=BACKWARD)).flops == 3 * work(lstm(10, 4, 32)).flops


def test_each_step_of_each_layer_waits_for_the_one_before():
    short, long, deep = (work(lstm(steps, 1, 16, layers)).round_trips for steps, layers in ((64, 1), (128, 1), (64, 3)))
    assert long == 2 * short and deep == 3 * short


def test_the_order_of_batch_and_steps_is_read():
    one, other = (Recurrent().describe(lstm(20, 8, 16, first=first), CONTEXT) for first in (True, False))
    assert one.features == other.features


def test_a_packed_sequence_has_as_many_steps_as_batch_sizes():
    x = Tensor((30, 8), "float32")
    op = Op(FORWARD, (x, [], 4, None, x, x, LSTM, 8, 0, 1, False, 0.0, True, False, [10, 10, 6, 4], None))
    assert 2 ** Recurrent().describe(op, CONTEXT).features[3] == 4


def test_calls_of_a_network_belong_to_the_family():
    assert present(family_of(lstm(4, 2, 8))).name == "recurrent"
    assert {case_number("recurrent", n, 2**24, "cuda").op.name for n in range(40)} == {FORWARD, BACKWARD}
