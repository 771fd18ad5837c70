"""Hugging Face's Trainer: a causal language model in bfloat16, with gradient accumulation and clipping."""

import argparse
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--full", action="store_true")
full = parser.parse_args().full

SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 1000}  # fmt: skip
LARGE = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8, "vocab_size": 128256}  # fmt: skip
config = LlamaConfig(**(LARGE if full else SMALL))
length = 4096 if full else 32


class Tokens(torch.utils.data.Dataset):
    """Random sequences."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, config.vocab_size, (length,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def main() -> None:
    torch.manual_seed(0)
    arguments = TrainingArguments(
        tempfile.mkdtemp(), max_steps=12, per_device_train_batch_size=1 if full else 2, gradient_accumulation_steps=2,
        bf16=full, logging_steps=1, report_to=[], save_strategy="no", dataloader_num_workers=0,
    )  # fmt: skip
    trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=Tokens())
    print("loss", trainer.train().training_loss)


if __name__ == "__main__":
    main()
