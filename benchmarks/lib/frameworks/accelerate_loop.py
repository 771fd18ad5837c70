"""accelerate: a loop of one's own around BERT, with `accumulate`, clipping and a schedule."""

import argparse

import torch
from accelerate import Accelerator
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

parser = argparse.ArgumentParser()
parser.add_argument("--full", action="store_true")
full = parser.parse_args().full


def main() -> None:
    torch.manual_seed(0)
    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(**({} if full else small))
    batch, length = (64, 512) if full else (4, 16)
    ids = torch.randint(0, config.vocab_size, (batch * 32, length))
    data = torch.utils.data.TensorDataset(ids, torch.randint(0, 2, (len(ids),)))
    loader = torch.utils.data.DataLoader(data, batch_size=batch, shuffle=True)
    accelerator = Accelerator(mixed_precision="bf16" if full else "no", gradient_accumulation_steps=2)
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    schedule = get_linear_schedule_with_warmup(optimizer, 2, 16)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for ids, labels in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    print("loss", loss.item())


if __name__ == "__main__":
    main()
