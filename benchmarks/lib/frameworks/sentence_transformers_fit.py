"""sentence-transformers: its trainer, with in-batch negatives."""

import argparse
import tempfile

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
    models,
)
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

parser = argparse.ArgumentParser()
parser.add_argument("--full", action="store_true")
full = parser.parse_args().full


def main() -> None:
    torch.manual_seed(0)
    folder = tempfile.mkdtemp()
    words = {"[PAD]": 0, "[UNK]": 1, **{f"w{number}": number + 2 for number in range(900)}}
    plain = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    plain.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    BertModel(BertConfig(**({} if full else small))).save_pretrained(folder)
    encoder = models.Transformer(folder, max_seq_length=256 if full else 16)
    model = SentenceTransformer(modules=[encoder, models.Pooling(encoder.get_word_embedding_dimension())])
    length, rows = (256, 4096) if full else (12, 64)
    texts = [" ".join(f"w{(row * 7 + place) % 900}" for place in range(length)) for row in range(2 * rows)]
    data = Dataset.from_dict({"anchor": texts[:rows], "positive": texts[rows:]})
    arguments = SentenceTransformerTrainingArguments(
        folder, max_steps=12, per_device_train_batch_size=128 if full else 4, bf16=full, logging_steps=1, report_to=[],
        save_strategy="no",
    )  # fmt: skip
    loss = losses.MultipleNegativesRankingLoss(model)
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=loss)
    print("loss", trainer.train().training_loss)


if __name__ == "__main__":
    main()
