"""Trains a decoder as llm-foundry does: a YAML with overrides on the command line, a registry, microbatches, a Trainer."""

import os
import sys
import warnings

import torch
import torch.nn.functional as F
from omegaconf import DictConfig
from omegaconf import OmegaConf as om
from torch import nn

OPTIMIZERS = {"decoupled_adamw": torch.optim.AdamW, "decoupled_lionw": torch.optim.SGD}


class MPTBlock(nn.Module):
    def __init__(self, d_model, n_heads, expansion_ratio):
        super().__init__()
        self.n_heads = n_heads
        self.norm_1 = nn.LayerNorm(d_model, bias=False)
        self.Wqkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)
        self.norm_2 = nn.LayerNorm(d_model, bias=False)
        self.up_proj = nn.Linear(d_model, expansion_ratio * d_model, bias=False)
        self.down_proj = nn.Linear(expansion_ratio * d_model, d_model, bias=False)

    def forward(self, x):
        b, s, d = x.shape
        qkv = self.Wqkv(self.norm_1(x)).view(b, s, 3, self.n_heads, d // self.n_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out_proj(y.transpose(1, 2).reshape(b, s, d))
        return x + self.down_proj(F.gelu(self.up_proj(self.norm_2(x))))


class MPTForCausalLM(nn.Module):
    def __init__(self, d_model, n_heads, n_layers, expansion_ratio, vocab_size, max_seq_len):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, d_model)
        self.wpe = nn.Embedding(max_seq_len, d_model)
        self.blocks = nn.ModuleList(MPTBlock(d_model, n_heads, expansion_ratio) for _ in range(n_layers))
        self.norm_f = nn.LayerNorm(d_model, bias=False)

    def forward(self, batch):
        ids = batch["input_ids"]
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm_f(x), self.wte.weight)

    def loss(self, outputs, batch):
        targets = torch.roll(batch["labels"], shifts=-1)
        targets[:, -1] = -100
        return F.cross_entropy(outputs.view(-1, outputs.size(-1)), targets.view(-1), ignore_index=-100)


class StreamingText(torch.utils.data.IterableDataset):
    def __init__(self, vocab, length):
        self.vocab, self.length = vocab, length

    def __iter__(self):
        while True:
            ids = torch.randint(self.vocab, (self.length,))
            yield {"input_ids": ids, "labels": ids}


class Trainer:
    def __init__(self, model, optimizer, loader, cfg):
        self.model, self.optimizer, self.loader, self.cfg = model, optimizer, loader, cfg
        self.device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
        self.model.to(self.device)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))

    def fit(self):
        step = 0
        for batch in self.loader:
            batch = {name: value.to(self.device, non_blocking=True) for name, value in batch.items()}
            self._train_batch(batch)
            self.scheduler.step()
            step += 1
            if step % 1000 == 0:
                torch.save({"state": self.model.state_dict()}, os.path.join(self.cfg.save_folder, f"ba{step}.pt"))
            if step >= self.cfg.max_duration:
                break

    def _train_batch(self, batch):
        self.optimizer.zero_grad()
        size = self.cfg.device_train_microbatch_size
        count = len(batch["input_ids"])
        for start in range(0, count, size):
            micro = {name: value[start : start + size] for name, value in batch.items()}
            with torch.autocast("cuda", torch.bfloat16, enabled=self.cfg.precision == "amp_bf16"):
                loss = self.model.loss(self.model(micro), micro)
            (loss * (size / count)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


def main(cfg: DictConfig):
    warnings.filterwarnings("ignore", category=UserWarning)
    torch.manual_seed(cfg.seed)
    os.makedirs(cfg.save_folder, exist_ok=True)
    model = MPTForCausalLM(**cfg.model, max_seq_len=cfg.max_seq_len)
    options = {key: om.to_object(v) if om.is_config(v) else v for key, v in cfg.optimizer.items() if key != "name"}
    optimizer = OPTIMIZERS[cfg.optimizer.name](model.parameters(), **options)
    loader = torch.utils.data.DataLoader(
        StreamingText(cfg.model.vocab_size, cfg.max_seq_len), batch_size=cfg.global_train_batch_size, num_workers=8
    )
    Trainer(model, optimizer, loader, cfg).fit()


if __name__ == "__main__":
    yaml_path, args_list = sys.argv[1], sys.argv[2:]
    with open(yaml_path) as f:
        yaml_cfg = om.load(f)
    cfg = om.merge(yaml_cfg, om.from_cli(args_list))
    om.resolve(cfg)
    main(cfg)
