from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

import dlrm
import dlrm_distributed

SHAPE = dlrm.Shape(rows=(50, 40, 30), dim=4, pooling=2, bottom=(3, 4), top=(8, 1), batch=6)
RANKS = 2


def whole_model_and_batch():
    torch.manual_seed(0)
    model = dlrm.DLRM(SHAPE)
    features, clicked = torch.randn(RANKS * SHAPE.batch, 3), torch.rand(RANKS * SHAPE.batch, 1).round()
    ids = [dlrm.row_ids(RANKS * SHAPE.batch * SHAPE.pooling, rows, skew=0.0) for rows in SHAPE.rows]
    return model, features, clicked, ids


def trained(guess, clicked, parameters):
    nn.functional.binary_cross_entropy_with_logits(guess, clicked).backward()
    torch.optim.SGD(parameters, lr=0.5).step()


def train_a_share(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    model, features, clicked, ids = whole_model_and_batch()
    tables = dlrm_distributed.ShardedTables(SHAPE.rows, SHAPE.dim, SHAPE.pooling)
    for mine, whole in zip(tables.mine, model.tables[rank::RANKS]):
        mine.load_state_dict(whole.state_dict())
    dense = nn.parallel.DistributedDataParallel(model.dense)
    guess = dense(features.chunk(RANKS)[rank], tables([i.chunk(RANKS)[rank] for i in ids]))
    trained(guess, clicked.chunk(RANKS)[rank], [*tables.parameters(), *dense.parameters()])
    torch.save((tables.state_dict(), model.dense.state_dict()), f"{store}.{rank}")
    dist.destroy_process_group()


def test_ranks_together_train_as_one_would_alone(tmp_path):
    context = torch.multiprocessing.start_processes(
        train_a_share, (str(tmp_path / "store"),), RANKS, join=False, start_method="forkserver"
    )
    model, features, clicked, ids = whole_model_and_batch()
    offsets = torch.arange(0, len(ids[0]), SHAPE.pooling)
    trained(model(features, ids, offsets), clicked, model.parameters())
    context.join()
    for rank in range(RANKS):
        tables, dense = torch.load(tmp_path / f"store.{rank}")
        torch.testing.assert_close(dense, dict(model.dense.state_dict()))
        for mine, whole in zip(tables.values(), model.tables[rank::RANKS]):
            torch.testing.assert_close(mine, whole.weight.detach())
