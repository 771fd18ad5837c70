"""Which kernels a call launches, in order, and what share of its time each takes."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.rows import Floats, Rows
from foretrace.cost_models.trees import Forest

if TYPE_CHECKING:
    from foretrace.platform.measurements import Repeat

RARE = 3
"""Sequences that were seen less often teach nothing."""
LEAVES = 1000

_ENDS = re.compile(r"_tilesize|_\d+x\d+|_sm\d+_|_f\d+f\d+|_bf16|_align\d")


@cache
def short(kernel: str) -> str:
    """A kernel's name without its template arguments, tiles and types.

    >>> short("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>(int)")
    'vectorized_elementwise_kernel'
    >>> short("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_TNN"), short("Memset (Device)")
    ('nvjet', 'Memset')
    """
    if "cutlass" in kernel:
        return "cutlass"
    name = re.split(r"[<(]", kernel.replace("(anonymous namespace)::", ""))[0].strip()
    return _ENDS.split(name.split("::")[-1].split(" ")[-1])[0] or kernel[:40]


class Patterns:
    """A decision tree from features to a sequence of kernels."""

    def fit(self, rows: Rows) -> Self:
        """Learn which sequence goes with which features."""
        from sklearn.tree import DecisionTreeClassifier

        sequences = [tuple(short(name) for name, _ in repeat) for repeat in rows.kernels]
        counts = Counter(sequences)
        self.kernels_ = [seen for seen, count in counts.most_common() if count >= RARE] or [counts.most_common(1)[0][0]]
        self.shares_ = _shares(self.kernels_, sequences, rows.kernels)
        code = {sequence: place for place, sequence in enumerate(self.kernels_)}
        known = np.array([code.get(sequence, -1) for sequence in sequences])
        learned = DecisionTreeClassifier(max_leaf_nodes=LEAVES, random_state=7)
        learned.fit(rows.features[known >= 0], known[known >= 0])
        self.tree_ = Forest.of([_nested(learned.tree_, learned.classes_, 0)])
        return self

    def predict(self, features: Floats) -> NDArray[np.int64]:
        """Which of the sequences each row launches."""
        return self.tree_.predict(features).astype(np.int64)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its numbers and names, for a file."""
        text = json.dumps({"kernels": self.kernels_, "shares": self.shares_})
        return {**self.tree_.arrays("pattern"), "pattern.sequences": np.frombuffer(text.encode(), np.uint8)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """What `arrays` gave, beside the names of the ``columns`` it was fitted on."""
        made = cls()
        known = json.loads(arrays["pattern.sequences"].tobytes())
        made.kernels_ = [tuple(sequence) for sequence in known["kernels"]]
        made.shares_ = [tuple(shares) for shares in known["shares"]]
        made.tree_ = Forest.from_arrays(arrays, "pattern", len(arrays["columns"]))
        answers = made.tree_.threshold[made.tree_.feature < 0]
        if not ((answers >= 0) & (answers < len(made.kernels_))).all() or len(made.shares_) != len(made.kernels_):
            raise ValueError("the sequences of kernels and the tree that picks them do not fit")
        return made


def _shares(
    wanted: Sequence[tuple[str, ...]], sequences: Sequence[tuple[str, ...]], repeats: Sequence[Repeat]
) -> list[tuple[float, ...]]:
    """Mean share of each kernel of a sequence in the time of all."""
    seen = defaultdict(list)
    for sequence, repeat in zip(sequences, repeats):
        total = sum(us for _, us in repeat) or 1.0
        seen[sequence].append([us / total for _, us in repeat])
    return [tuple(np.mean(seen[sequence], axis=0).round(4).tolist()) for sequence in wanted]


def _nested(tree: Any, classes: NDArray[Any], node: int) -> dict[str, Any]:
    """A fitted tree's nodes as nested ones."""
    if tree.children_left[node] < 0:
        return {"leaf_value": float(classes[int(np.argmax(tree.value[node]))])}
    return {
        "split_feature": int(tree.feature[node]),
        "threshold": float(tree.threshold[node]),
        "left_child": _nested(tree, classes, tree.children_left[node]),
        "right_child": _nested(tree, classes, tree.children_right[node]),
    }
