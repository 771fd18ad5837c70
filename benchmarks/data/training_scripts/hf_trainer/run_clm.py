"""Trains a causal language model from a random configuration with transformers' Trainer, as run_clm.py does."""

import logging
import math
from dataclasses import dataclass, field

import torch
import transformers
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    model_type: str = field(default="gpt2", metadata={"help": "If training from scratch, pass a model type."})
    config_overrides: str | None = field(default=None, metadata={"help": "n_embd=10,resid_pdrop=0.2,…"})


@dataclass
class DataTrainingArguments:
    block_size: int = field(default=512)
    num_samples: int = field(default=10000)


class RandomTokens(torch.utils.data.Dataset):
    def __init__(self, vocab, block, count):
        self.vocab, self.block, self.count = vocab, block, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        ids = torch.randint(0, self.vocab, (self.block,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    logging.basicConfig(level=logging.INFO)
    transformers.utils.logging.set_verbosity_info()
    logger.warning(f"Process rank: {training_args.local_rank}, device: {training_args.device}")
    set_seed(training_args.seed)
    config = CONFIG_MAPPING[model_args.model_type]()
    if model_args.config_overrides is not None:
        config.update_from_string(model_args.config_overrides)
    model = AutoModelForCausalLM.from_config(config)
    n_params = sum({p.data_ptr(): p.numel() for p in model.parameters()}.values())
    logger.info(f"Training new model from scratch - Total size={n_params / 2**20:.2f}M params")
    train_dataset = RandomTokens(config.vocab_size, data_args.block_size, data_args.num_samples)
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset if training_args.do_train else None,
        data_collator=default_data_collator,
    )
    if training_args.do_train:
        train_result = trainer.train()
        trainer.save_model()
        metrics = train_result.metrics
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()
        logger.info(f"perplexity {math.exp(metrics['train_loss'])}")


if __name__ == "__main__":
    main()
