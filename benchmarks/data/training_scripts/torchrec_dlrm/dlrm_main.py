"""Trains a DLRM with TorchRec's modules on random Criteo batches, as torchrec's example does, on one rank."""

import argparse
import sys

import torch
from torch import nn
from torchrec import EmbeddingBagCollection, KeyedJaggedTensor
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from tqdm import tqdm


def parse_args(argv):
    parser = argparse.ArgumentParser(description="torchrec dlrm example trainer")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=2048)
    parser.add_argument("--limit_train_batches", type=int, default=1000)
    parser.add_argument("--num_embeddings", type=int, default=100_000)
    parser.add_argument("--embedding_dim", type=int, default=64)
    parser.add_argument("--dense_arch_layer_sizes", type=str, default="512,256,64")
    parser.add_argument("--over_arch_layer_sizes", type=str, default="512,512,256,1")
    parser.add_argument("--learning_rate", type=float, default=15.0)
    parser.add_argument("--validation_freq_within_epoch", type=int, default=None)
    return parser.parse_args(argv)


class Batch:
    def __init__(self, dense_features, sparse_features, labels):
        self.dense_features, self.sparse_features, self.labels = dense_features, sparse_features, labels

    def to(self, device):
        return Batch(
            self.dense_features.to(device, non_blocking=True),
            self.sparse_features.to(device, non_blocking=True),
            self.labels.to(device, non_blocking=True),
        )


def random_batches(keys, args):
    for _ in range(args.limit_train_batches):
        sparse = KeyedJaggedTensor.from_offsets_sync(
            keys=keys,
            values=torch.randint(args.num_embeddings, (args.batch_size * len(keys),)),
            offsets=torch.arange(args.batch_size * len(keys) + 1, dtype=torch.int32),
        )
        yield Batch(torch.rand(args.batch_size, 13), sparse, torch.randint(2, (args.batch_size,)))


def main(argv):
    args = parse_args(argv)
    device = torch.device("cuda:0") if torch.cuda.is_available() else torch.device("cpu")
    keys = [f"cat_{number}" for number in range(26)]
    tables = [
        EmbeddingBagConfig(
            name=f"t_{key}",
            embedding_dim=args.embedding_dim,
            num_embeddings=args.num_embeddings,
            feature_names=[key],
        )
        for key in keys
    ]
    train_model = DLRMTrain(
        DLRM(
            embedding_bag_collection=EmbeddingBagCollection(tables=tables, device=device),
            dense_in_features=13,
            dense_arch_layer_sizes=list(map(int, args.dense_arch_layer_sizes.split(","))),
            over_arch_layer_sizes=list(map(int, args.over_arch_layer_sizes.split(","))),
            dense_device=device,
        )
    )
    assert isinstance(train_model, nn.Module)
    optimizer = torch.optim.SGD(train_model.parameters(), lr=args.learning_rate)
    for epoch in range(args.epochs):
        train_model.train()
        for batch in tqdm(random_batches(keys, args), desc=f"Epoch {epoch}", total=args.limit_train_batches):
            optimizer.zero_grad()
            loss, (detached, logits, labels) = train_model(batch.to(device))
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1:])
