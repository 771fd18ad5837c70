"""Trains an autoencoder-like classifier with Lightning: a LightningModule, a DataModule and a Trainer."""

import argparse

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class RandomImages(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.randn(3, 64, 64), index % 100


class DataModule(L.LightningDataModule):
    def __init__(self, batch_size, workers):
        super().__init__()
        self.batch_size, self.workers = batch_size, workers

    def train_dataloader(self):
        return DataLoader(RandomImages(100_000), self.batch_size, shuffle=True, num_workers=self.workers)

    def val_dataloader(self):
        return DataLoader(RandomImages(1_000), self.batch_size, num_workers=self.workers)


class LitClassifier(L.LightningModule):
    def __init__(self, width, lr):
        super().__init__()
        self.save_hyperparameters()
        blocks, channels = [], 3
        for factor in (1, 2, 4):
            blocks += [nn.Conv2d(channels, width * factor, 3, 2, 1), nn.BatchNorm2d(width * factor), nn.ReLU()]
            channels = width * factor
        self.net = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 100))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.cross_entropy(logits, y))
        self.log("val_acc", (logits.argmax(1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--max_epochs", type=int, default=5)
    args = parser.parse_args()
    L.seed_everything(42)
    trainer = L.Trainer(
        max_epochs=args.max_epochs, accelerator="auto", devices=1, precision=args.precision, gradient_clip_val=1.0
    )
    trainer.fit(LitClassifier(args.width, 1e-3), DataModule(args.batch_size, args.workers))


if __name__ == "__main__":
    main()
