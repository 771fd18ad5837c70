"""TorchRec: DistributedModelParallel over a DLRM, with fused optimizers in the tables' kernels."""

import argparse
import os

for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost",
                    "MASTER_PORT": "29534"}.items():  # fmt: skip
    os.environ.setdefault(name, value)

import torch  # noqa: E402 - it reads the environment
import torch.distributed as dist  # noqa: E402
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor  # noqa: E402
from torchrec.distributed.model_parallel import DistributedModelParallel  # noqa: E402
from torchrec.models.dlrm import DLRM, DLRMTrain  # noqa: E402
from torchrec.optim.keyed import KeyedOptimizerWrapper  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--full", action="store_true")
full = parser.parse_args().full


class Batch:
    """What DLRMTrain is given."""

    def __init__(self, keys: list[str], rows: int, batch: int, device: torch.device) -> None:
        lengths = torch.ones(len(keys) * batch, dtype=torch.int32)
        values = torch.randint(0, rows, (len(keys) * batch,))
        self.sparse_features = KeyedJaggedTensor(keys, values, lengths=lengths).to(device)
        self.dense_features = torch.randn(batch, 13).to(device)
        self.labels = torch.randint(0, 2, (batch,)).to(device)


def main() -> None:
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    features, rows, width, batch = (26, 1_000_000, 128, 8192) if full else (4, 100, 8, 16)
    keys = [f"f{number}" for number in range(features)]
    tables = [EmbeddingBagConfig(num_embeddings=rows, embedding_dim=width, name=k, feature_names=[k]) for k in keys]
    tables_of = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    dense_widths = [512, 256, width] if full else [16, width]
    network = DLRM(tables_of, 13, dense_widths, [512, 256, 1] if full else [16, 1], dense_device=device)
    model = DistributedModelParallel(DLRMTrain(network), device=device)
    optimizer = KeyedOptimizerWrapper(
        dict(model.named_parameters()), lambda weights: torch.optim.SGD(weights, lr=0.1)
    )  # fmt: skip
    for _ in range(12):
        loss, _ = model(Batch(keys, rows, batch, device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("loss", loss.item())


if __name__ == "__main__":
    main()
