"""TRL: supervised fine-tuning of a causal language model with LoRA."""

import argparse
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--full", action="store_true")
full = parser.parse_args().full

SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 1000}  # fmt: skip
LARGE = {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
         "num_key_value_heads": 4, "vocab_size": 152064}  # fmt: skip


def main() -> None:
    torch.manual_seed(0)
    words = {"<pad>": 0, "<eos>": 1, **{f"w{number}": number + 2 for number in range(900)}}
    plain = Tokenizer(WordLevel(words, unk_token="<pad>"))
    plain.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>")
    length = 2048 if full else 24
    texts = [" ".join(f"w{(row * 7 + place) % 900}" for place in range(length)) for row in range(64)]
    arguments = SFTConfig(
        tempfile.mkdtemp(), max_steps=12, per_device_train_batch_size=4 if full else 2, max_length=length, bf16=full,
        gradient_checkpointing=full, logging_steps=1, report_to=[], save_strategy="no",
    )  # fmt: skip
    model = Qwen2ForCausalLM(Qwen2Config(**(LARGE if full else SMALL)))
    trainer = SFTTrainer(
        model, arguments, train_dataset=Dataset.from_dict({"text": texts}), processing_class=tokenizer,
        peft_config=LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    )  # fmt: skip
    print("loss", trainer.train().training_loss)


if __name__ == "__main__":
    main()
