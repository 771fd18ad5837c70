"""TorchRec: an EmbeddingBagCollection under DLRM, with jagged features of random lengths."""

import argparse

import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.models.dlrm import DLRM, DLRMTrain

parser = argparse.ArgumentParser()
parser.add_argument("--full", action="store_true")
full = parser.parse_args().full


def main() -> None:
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    features, rows, width, batch = (26, 1_000_000, 128, 8192) if full else (4, 100, 8, 16)
    keys = [f"f{number}" for number in range(features)]
    tables = [
        EmbeddingBagConfig(num_embeddings=rows, embedding_dim=width, name=f"t_{k}", feature_names=[k]) for k in keys
    ]
    dense_widths = [512, 256, width] if full else [16, width]
    model = DLRMTrain(
        DLRM(EmbeddingBagCollection(tables=tables, device=device), dense_in_features=13,
             dense_arch_layer_sizes=dense_widths, over_arch_layer_sizes=[512, 256, 1] if full else [16, 1],
             dense_device=device)
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    class Batch:
        """What DLRMTrain is given."""

        def __init__(self) -> None:
            lengths = torch.randint(0, 4, (features * batch,), dtype=torch.int32)
            values = torch.randint(0, rows, (int(lengths.sum()),))
            self.sparse_features = KeyedJaggedTensor(keys, values, lengths=lengths).to(device)
            self.dense_features = torch.randn(batch, 13).to(device)
            self.labels = torch.randint(0, 2, (batch,)).to(device)

    for _ in range(12):
        loss, _ = model(Batch())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("loss", loss.item())


if __name__ == "__main__":
    main()
