"""Small steps over tables: classifiers, two towers of embeddings, messages on a graph, contrast of pairs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from foretrace.platform.measure.host_training import OPTIMIZERS, Training, trained

WIDTH, ROWS = 64, 32


def classifier(device: Any, optimizer: str, layers: int = 10, activation: Any = nn.ReLU) -> Training:
    """Linear layers in a row, as modules."""
    hidden = [nn.Sequential(nn.Linear(WIDTH, WIDTH), activation(), nn.Dropout(0.1)) for _ in range(layers)]
    model = nn.Sequential(*hidden, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)).to(device)
    inputs, labels = torch.randn(ROWS, WIDTH, device=device), torch.randint(10, (ROWS,), device=device)
    loss = nn.CrossEntropyLoss()
    return trained(model, lambda: loss(model(inputs), labels), optimizer)


def bare_classifier(device: Any, optimizer: str) -> Training:
    """The same from functions alone: no module is ever entered."""
    weights = [torch.randn(WIDTH, WIDTH, device=device, requires_grad=True) for _ in range(12)]
    biases = [torch.zeros(WIDTH, device=device, requires_grad=True) for _ in range(12)]
    inputs, targets = (torch.randn(ROWS, WIDTH, device=device) for _ in range(2))

    def loss() -> torch.Tensor:
        x = inputs
        for weight, bias in zip(weights, biases):
            x = torch.tanh(x @ weight + bias) * 0.5 + x
        return F.mse_loss(x, targets)

    return Training(loss, OPTIMIZERS[optimizer]([*weights, *biases]))


class _TwoTowers(nn.Module):
    """Users and items, each a few bags of ids and a linear layer; their product says who likes what."""

    def __init__(self, bags: int, sparse: bool) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(1000, WIDTH, mode="sum", sparse=sparse) for _ in range(2 * bags))
        self.user, self.item = (nn.Sequential(nn.Linear(bags * WIDTH, WIDTH), nn.ReLU()) for _ in range(2))
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, ids: list[torch.Tensor], offsets: torch.Tensor) -> torch.Tensor:
        looked_up = [bag(i, offsets) for bag, i in zip(self.bags, ids)]
        half = len(looked_up) // 2
        user, item = self.user(torch.cat(looked_up[:half], 1)), self.item(torch.cat(looked_up[half:], 1))
        logits: torch.Tensor = self.score(user * item)
        return logits


def two_towers(device: Any, bags: int, sparse: bool) -> Training:
    """Embedding bags, with sparse gradients or dense ones."""
    model = _TwoTowers(bags, sparse).to(device)
    ids = [torch.randint(1000, (4 * ROWS,), device=device) for _ in range(2 * bags)]
    offsets = torch.arange(0, 4 * ROWS, 4, device=device)
    liked = torch.rand(ROWS, 1, device=device)
    loss = nn.BCEWithLogitsLoss()
    return trained(model, lambda: loss(model(ids, offsets), liked), "sgd")


def crossed_features(device: Any) -> Training:
    """Embeddings of several columns, every pair of them multiplied, the products picked by their places."""
    columns, dim = 6, 16
    tables = nn.ModuleList(nn.Embedding(500, dim) for _ in range(columns)).to(device)
    head = nn.Sequential(nn.Linear(columns * (columns - 1) // 2 + dim, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)).to(
        device
    )
    ids = torch.randint(500, (ROWS, columns), device=device)
    first, second = torch.triu_indices(columns, columns, 1, device=device)
    target = torch.rand(ROWS, 1, device=device)

    def loss() -> torch.Tensor:
        rows = torch.stack([table(ids[:, n]) for n, table in enumerate(tables)], dim=1)
        pairs = torch.bmm(rows, rows.transpose(1, 2))[:, first, second]
        guess = torch.sigmoid(head(torch.cat([rows.mean(dim=1), pairs], dim=1)))
        return F.binary_cross_entropy(guess, target)

    return trained(nn.ModuleList([tables, head]), loss, "adam")


def messages(device: Any) -> Training:
    """Nodes of a graph that add up what their neighbours say."""
    nodes, links = 64, 256
    model = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6)).to(device)
    features = torch.randn(nodes, WIDTH, device=device)
    source, target = (torch.randint(nodes, (links,), device=device) for _ in range(2))
    degree = torch.ones(nodes, 1, device=device).index_add_(0, target, torch.ones(links, 1, device=device))

    def loss() -> torch.Tensor:
        x = features
        for n, layer in enumerate(model):
            said = F.leaky_relu(layer(x.index_select(0, source)))
            if n % 2:
                heard = torch.zeros_like(x).index_add(0, target, said)
            else:
                heard = torch.zeros_like(x).scatter_add(0, target[:, None].expand_as(said), said)
            x = F.normalize(x + heard / degree, dim=-1)
        return x.gather(1, source[:nodes, None] % WIDTH).abs().mean()

    return trained(model, loss, "rmsprop")


def contrast(device: Any, autocast: bool) -> Training:
    """Two encoders whose outputs are told apart from all others of the batch."""
    model = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Softplus(), nn.Linear(WIDTH, 32)) for _ in range(2))
    model.to(device)
    left, right = (torch.randn(ROWS, WIDTH, device=device) for _ in range(2))
    labels = torch.arange(ROWS, device=device)

    def loss() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            a, b = (F.normalize(encode(x), dim=-1) for encode, x in zip(model, (left, right)))
            alike = torch.einsum("id,jd->ij", a, b).clamp(-1, 1) / 0.1
        spread = torch.logsumexp(alike, dim=1).mean() + alike.exp().sum(0).log().mean()
        hardest = alike.float().topk(4, dim=1).values.masked_fill(labels[:, None] < 2, 0.0)
        return F.cross_entropy(alike, labels) + spread + hardest.square().mean() + alike.std().sqrt()

    trained_one = trained(model, loss, "adamw")
    trained_one.before_update = lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return trained_one
