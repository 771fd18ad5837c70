"""DLRM as torchrec_dlrm trained it on Criteo's click logs: one id for each of 26 tables, SGD, pipelined.

As facebookresearch/dlrm has it (torchrec_dlrm/README.MD, 2022): dense and sparse gradients by SGD, that of tables fused
into their kernels, the plan of TorchRec's own planner, products in TF32, `TrainPipelineSparseDist`.

foretrace predict --on a100-40gb --world 8 -- python benchmarks/models/torchrec_dlrm.py --batch 2048
"""

from __future__ import annotations

import argparse
import itertools
import os
from dataclasses import dataclass

for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost",
                    "MASTER_PORT": "29535"}.items():  # fmt: skip
    os.environ.setdefault(name, value)

import torch  # noqa: E402 - it reads the environment
import torch.distributed as dist  # noqa: E402
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor  # noqa: E402
from torchrec.distributed.model_parallel import DistributedModelParallel  # noqa: E402
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist  # noqa: E402
from torchrec.models.dlrm import DLRM, DLRMTrain  # noqa: E402
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward  # noqa: E402
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper  # noqa: E402
from torchrec.optim.optimizers import in_backward_optimizer_filter  # noqa: E402
from torchrec.streamable import Pipelineable  # noqa: E402

ROWS = [
    45833188, 36746, 17245, 7413, 20243, 3, 7114, 1441, 62, 29275261, 1572176, 345138, 10, 2209, 11267, 128, 4, 974, 14,
    48937457, 11316796, 40094537, 452104, 12606, 104, 35,
]  # fmt: skip
TINY_ROWS = [100, 50, 3, 1000]
WIDTH, DENSE, OVER = 128, [512, 256, 128], [1024, 1024, 512, 256, 1]
NUMBERS = 13
"""Numbers of a click, beside its ids."""


@dataclass
class Batch(Pipelineable):
    """What DLRMTrain is given."""

    dense_features: torch.Tensor
    sparse_features: KeyedJaggedTensor
    labels: torch.Tensor

    @classmethod
    def random(cls, rows: list[int], size: int) -> Batch:
        ids = torch.cat([torch.randint(0, count, (size,)) for count in rows])
        keys = [f"cat_{number}" for number in range(len(rows))]
        lengths = torch.ones(len(rows) * size, dtype=torch.int32)
        return cls(
            torch.randn(size, NUMBERS), KeyedJaggedTensor(keys, ids, lengths=lengths), torch.randint(0, 2, (size,))
        )

    def to(self, device: torch.device, non_blocking: bool = False) -> Batch:
        return Batch(
            self.dense_features.to(device, non_blocking=non_blocking),
            self.sparse_features.to(device, non_blocking=non_blocking),
            self.labels.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> Batch:
        return Batch(self.dense_features.pin_memory(), self.sparse_features.pin_memory(), self.labels.pin_memory())

    def record_stream(self, stream: torch.Stream) -> None:
        for part in (self.dense_features, self.sparse_features, self.labels):
            part.record_stream(stream)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--batch", type=int, default=32, help="samples of a rank")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rows = TINY_ROWS if args.tiny else ROWS
    tables = [
        EmbeddingBagConfig(num_embeddings=count, embedding_dim=WIDTH, name=f"t_{n}", feature_names=[f"cat_{n}"])
        for n, count in enumerate(rows)
    ]
    collection = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    network = DLRMTrain(DLRM(collection, NUMBERS, DENSE, OVER, dense_device=device))
    apply_optimizer_in_backward(torch.optim.SGD, collection.parameters(), {"lr": 15.0})
    model = DistributedModelParallel(network, device=device)
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(model.named_parameters())), lambda weights: torch.optim.SGD(weights, lr=15.0)
    )
    pipeline = TrainPipelineSparseDist(model, CombinedOptimizer([model.fused_optimizer, dense]), device)
    batch = Batch.random(rows, args.batch)
    batches = itertools.repeat(batch.pin_memory() if device.type == "cuda" else batch)
    for _ in range(20):
        loss, *_ = pipeline.progress(batches)
    print("loss", loss.item())


if __name__ == "__main__":
    main()
