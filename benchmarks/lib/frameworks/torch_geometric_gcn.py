"""PyTorch Geometric: a graph network over one graph, whose edges have no duplicates to merge."""

import argparse

import torch
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

parser = argparse.ArgumentParser()
parser.add_argument("--full", action="store_true")
full = parser.parse_args().full


class Network(torch.nn.Module):
    """Three kinds of layers."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first = GCNConv(width, 128)
        self.second = GATConv(128, 32, heads=4)
        self.third = SAGEConv(128, classes)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        x = F.dropout(F.relu(self.first(x, edges)), 0.5, self.training)
        return self.third(F.elu(self.second(x, edges)), edges)


def main() -> None:
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    nodes, degree = (169_343, 14) if full else (64, 4)
    edges = torch.randint(0, nodes, (2, nodes * degree // 2 if full else nodes * degree))
    data = Data(torch.randn(nodes, 128), edges, y=torch.randint(0, 40, (nodes,))).to(device)
    model = Network(128, 40).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(12):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.x, data.edge_index), data.y)
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


if __name__ == "__main__":
    main()
