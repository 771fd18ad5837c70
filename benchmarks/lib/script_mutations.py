"""Edits of the examples, each one replacement of text: some change what the step does, others change nothing of it."""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """An edit of an example."""

    example: str
    what: str
    old: str
    new: str


EVERY = ("gpt", "resnet", "dlrm", "bert")
_STEP = "        optim.step()\n"

SLOWER = [
    Mutation(
        "gpt",
        "a wait for the device after the step",
        "        optim.step()\n",
        "        optim.step()\n        torch.cuda.synchronize()\n",
    ),
    Mutation(
        "gpt",
        "the loss is read",
        "        return loss.detach()\n",
        "        print(loss.item())\n        return loss.detach()\n",
    ),
    Mutation(
        "gpt",
        "activations in float64",
        "x = x + self.attention(self.before_attention(x))",
        "x = x + self.attention(self.before_attention(x).double().float())",
    ),
    Mutation(
        "gpt",
        "an extra copy in each block",
        "return x + self.mlp(self.before_mlp(x))",
        "return x.clone() + self.mlp(self.before_mlp(x))",
    ),
    Mutation(
        "gpt",
        "attention written out",
        "seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)",
        "seen = (q @ k.transpose(-2, -1)).softmax(-1) @ v",
    ),
    Mutation("gpt", "a larger vocabulary", "50257, 1024, 16)", "60000, 1024, 16)"),
    Mutation("gpt", "a larger batch", "50257, 1024, 16)", "50257, 1024, 20)"),
    Mutation("gpt", "longer text", "50257, 1024, 16)", "50257, 1100, 16)"),
    Mutation("gpt", "one more block", '"gpt2": Shape(12, 12', '"gpt2": Shape(13, 12'),
    Mutation(
        "gpt",
        "a wider perceptron",
        "nn.Linear(shape.dim, 4 * shape.dim), nn.GELU(), nn.Linear(4 * shape.dim",
        "nn.Linear(shape.dim, 5 * shape.dim), nn.GELU(), nn.Linear(5 * shape.dim",
    ),
    Mutation(
        "gpt", "an optimizer that walks the weights one by one", 'optimizer: str = "auto"', 'optimizer: str = "loop"'
    ),
    Mutation("gpt", "blocks are recomputed", "recompute: bool = False", "recompute: bool = True"),
    Mutation("gpt", "two backward passes", "accumulate: int = 1", "accumulate: int = 2"),
    Mutation(
        "gpt",
        "logits in a contiguous copy of float64",
        "guess.flatten(0, 1), part",
        "guess.flatten(0, 1).double(), part",
    ),
    Mutation(
        "gpt",
        "the norm of gradients is clipped",
        "        optim.step()\n",
        "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        optim.step()\n",
    ),
    Mutation("gpt", "weights are not tied", "        self.head.weight = self.words.weight\n", ""),
    Mutation(
        "gpt",
        "two more norms",
        "        self.last_norm = nn.LayerNorm(shape.dim)",
        "        self.last_norm = nn.Sequential(*(nn.LayerNorm(shape.dim) for _ in range(9)))",
    ),
    Mutation("gpt", "heads of another size", '"gpt2": Shape(12, 12', '"gpt2": Shape(12, 24'),
    Mutation(
        "resnet",
        "a wait for the device",
        "        loss.backward()\n",
        "        torch.cuda.synchronize()\n        loss.backward()\n",
    ),
    Mutation(
        "resnet",
        "activations are not in place",
        "nn.ReLU(inplace=True),\n            *convolution(width, width",
        "nn.ReLU(inplace=False),\n            *convolution(width, width",
    ),
    Mutation("resnet", "another width", "(3, 4, 6, 3), 64, 224", "(3, 4, 6, 3), 72, 224"),
    Mutation("resnet", "larger pictures", '64, 224, 1000, 64),\n    "resnet101', '64, 240, 1000, 64),\n    "resnet101'),
    Mutation("resnet", "a block more", "(3, 4, 6, 3), 64", "(3, 4, 7, 3), 64"),
    Mutation("resnet", "convolutions with a bias", "bias=False)", "bias=True)"),
    Mutation(
        "resnet", "the batch is copied in each step", "model(pictures), labels", "model(pictures.clone() * 1.0), labels"
    ),
    Mutation(
        "resnet",
        "an extra norm of the pictures",
        "self.stages(self.stem(pictures))",
        "self.stages(self.stem((pictures - pictures.mean()) / pictures.std()))",
    ),
    Mutation(
        "resnet", "weights cast in each step", "model(pictures), labels", "model(pictures.double().float()), labels"
    ),
    Mutation(
        "resnet",
        "float64 loss",
        "functional.cross_entropy(model(pictures), labels)",
        "functional.cross_entropy(model(pictures), labels) + sum(w.double().square().sum() for w in model.parameters())",  # noqa: E501
    ),
    Mutation(
        "resnet",
        "unused weights",
        "        self.head = nn.Linear(channels, shape.classes)\n",
        "        self.head = nn.Linear(channels, shape.classes)\n        self.unused = nn.Linear(channels, 100 * shape.classes)\n",  # noqa: E501
    ),
    Mutation(
        "dlrm",
        "the loss is read",
        "        return loss.detach()\n",
        "        loss.item()\n        return loss.detach()\n",
    ),
    Mutation("dlrm", "dense gradients of tables", "sparse=True", "sparse=False"),
    Mutation(
        "dlrm",
        "a wait for the device",
        "        loss.backward()\n",
        "        loss.backward()\n        torch.cuda.synchronize()\n",
    ),
    Mutation(
        "dlrm",
        "wider vectors",
        "(1_000_000,) * 8, 64, 100, (512, 512, 64)",
        "(1_000_000,) * 8, 80, 100, (512, 512, 80)",
    ),
    Mutation("dlrm", "another table", "(1_000_000,) * 8", "(1_000_000,) * 9"),
    Mutation("dlrm", "more lookups", "64, 100, (512", "64, 110, (512"),
    Mutation("dlrm", "a wider perceptron", "(1024, 1024, 1024, 1), 2048", "(1280, 1024, 1024, 1), 2048"),
    Mutation(
        "dlrm",
        "products in float64",
        "products = torch.bmm(vectors, vectors.transpose(1, 2))",
        "products = torch.bmm(vectors.double(), vectors.double().transpose(1, 2)).float()",
    ),
    Mutation("dlrm", "an adaptive optimizer", 'optimizer: str = "sgd"', 'optimizer: str = "adagrad"'),
    Mutation(
        "dlrm",
        "lookups of each table twice",
        "[table(i, offsets) for table, i in zip(self.tables, ids)]",
        "[table(i, offsets) + table(i, offsets) for table, i in zip(self.tables, ids)]",
    ),
    Mutation("dlrm", "a larger batch", "(1024, 1024, 1024, 1), 2048", "(1024, 1024, 1024, 1), 2304"),
]
"""Edits after which the step takes longer, or more memory."""

_COMMENT = "# a comment that says nothing new\n"
_FUNCTION = "\n\ndef never_called(x):\n    return x.double().clone().cpu()\n\n\n"

SAME = [
    *(Mutation(name, "a comment above all", '"""', f'{_COMMENT}"""') for name in EVERY),
    *(
        Mutation(name, "a function that nobody calls", "\n\ndef make_step(", f"{_FUNCTION}def make_step(")
        for name in EVERY
    ),
    *(Mutation(name, "lines between", _STEP, f"\n\n{_STEP}\n\n") for name in EVERY),
    *(
        Mutation(
            name,
            "a longer docstring",
            '"""Model, optimizer and one random batch; returns what trains on it once."""',
            '"""Model, optimizer and one random batch.\n\n    Returns what trains on it once, and again.\n    """',
        )
        for name in EVERY
    ),
    *(
        Mutation(name, "an import that is not used", "import torch\n", "import collections\nimport torch\n")
        for name in EVERY
    ),
    *(Mutation(name, "an assertion", _STEP, f"        assert callable(optim.step)\n{_STEP}") for name in EVERY),
    *(
        Mutation(
            name,
            "a number of steps that is counted",
            "    def step() -> Tensor:\n",
            "    done: list[int] = []\n\n    def step() -> Tensor:\n        done.append(len(done))\n",
        )
        for name in EVERY
    ),
    Mutation(
        "gpt",
        "other names of variables",
        "seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)\n        return self.out(seen.",
        "found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)\n        return self.out(found.",
    ),
    Mutation(
        "gpt",
        "a definition elsewhere",
        "        x = x + self.attention(self.before_attention(x))\n",
        "        normed = self.before_attention(x)\n        x = x + self.attention(normed)\n",
    ),
    Mutation(
        "gpt",
        "keywords instead of places",
        "nn.Linear(shape.dim, 3 * shape.dim)",
        "nn.Linear(in_features=shape.dim, out_features=3 * shape.dim)",
    ),
    Mutation(
        "gpt",
        "the order of definitions in a class",
        "        self.heads = shape.heads\n        self.qkv = nn.Linear(shape.dim, 3 * shape.dim)\n",
        "        self.qkv = nn.Linear(shape.dim, 3 * shape.dim)\n        self.heads = shape.heads\n",
    ),
    Mutation(
        "gpt", "a preset that is not used", '"tiny": Shape(2, 4, 64, 512, 32, 8)', '"tiny": Shape(3, 4, 64, 512, 32, 8)'
    ),
    Mutation(
        "gpt", "a property of a class", "class GPT(nn.Module):\n", "class GPT(nn.Module):\n    kind = 'decoder'\n\n"
    ),
    Mutation(
        "resnet",
        "a sum instead of a list",
        "stages, channels = [], shape.width",
        "stages: list = []\n        channels = shape.width",
    ),
    Mutation("resnet", "another name", "outputs = 4 * width\n", "outputs = width * 4\n"),
    Mutation(
        "resnet", "a preset that is not used", '"resnet101": Shape((3, 4, 23, 3)', '"resnet101": Shape((3, 4, 22, 3)'
    ),
    Mutation("dlrm", "a preset that is not used", '"ddp": Shape((80_000,) * 8', '"ddp": Shape((90_000,) * 8'),
    Mutation(
        "dlrm", "an expression in brackets", "lookups = batch * shape.pooling", "lookups = (shape.pooling * batch)"
    ),
    Mutation(
        "dlrm",
        "a variable between",
        "        return self.top(torch.cat([x, products], dim=1))",
        "        both = torch.cat([x, products], dim=1)\n        return self.top(both)",
    ),
]
"""Edits after which the step does the same."""


def mutated(mutation: Mutation, source: str) -> str:
    """The source of an example after an edit."""
    assert mutation.old in source, f"{mutation.example} has no {mutation.old!r}"
    return source.replace(mutation.old, mutation.new, 1)
