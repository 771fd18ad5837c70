"""Lightning: automatic optimization of an image classifier, with clipping, logging and a checkpoint callback."""

import argparse
import tempfile

import lightning as L
import torch
import torchmetrics
import torchvision
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--full", action="store_true")
full = parser.parse_args().full


class Classifier(L.LightningModule):
    """ResNet on random images."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torchvision.models.resnet50() if full else torchvision.models.resnet18(num_classes=10)
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=1000 if full else 10)
        self.losses: list[float] = []

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        images, labels = batch
        output = self.model(images)
        loss = F.cross_entropy(output, labels)
        self.log("loss", loss, prog_bar=True)
        self.log("accuracy", self.accuracy(output, labels))
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


class Images(torch.utils.data.Dataset):
    """Random images."""

    def __len__(self) -> int:
        return 16 * (256 if full else 4)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        size = 224 if full else 32
        return torch.randn(3, size, size, generator=torch.Generator().manual_seed(index)), index % 10


def main() -> None:
    L.seed_everything(0)
    loader = torch.utils.data.DataLoader(Images(), batch_size=256 if full else 4, num_workers=0)
    model = Classifier()
    trainer = L.Trainer(
        max_steps=12, precision="bf16-mixed" if full else "32-true", gradient_clip_val=1.0, logger=False,
        enable_checkpointing=True, default_root_dir=tempfile.mkdtemp(), log_every_n_steps=1, enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(model, loader)
    print("loss", model.losses[-1])


if __name__ == "__main__":
    main()
