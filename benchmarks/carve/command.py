"""A small real mixture of experts, carved out of SmolLM2-135M-Instruct, since none ships in a package.

python -m benchmarks.carve OUT [--experts 16] [--shared 512] [--experts-per-token 8] [--seed 0]

OUT becomes a Hugging Face checkpoint of model type qwen2_moe. Every MLP is cut into a shared expert and routed ones
(layer.py) by what its neurons do with text that the model makes up itself: questions sampled where its chat
template wants the user's, and its greedy answers. Nothing is trained; with all experts selected it is the dense model.
The same arguments give the same bytes on one machine.

Prints, by the number of experts kept, how often the best next token is the dense model's, and the negative
log-likelihood of the dense model's greedy answers to the built-in prompts, which were not calibrated with.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from selfspec.bench.markdown import markdown_table
from selfspec.bench.prompts import Prompt
from selfspec.check.quality import TOKENS, Recording, record
from selfspec.cli.command import Parser, run_command
from selfspec.errors import UnsupportedModelError, UsageError
from selfspec.export.artifact import ExportOptions, export_model
from selfspec.export.checkpoint import Checkpoint
from selfspec.export.source import open_model
from selfspec.export.workspace import publish, workspace
from selfspec.models.config import ModelConfig
from selfspec.runtime.arrays import Floats
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.logprobs import log_softmax
from selfspec.runtime.model import Model, load, notify_stderr
from selfspec.runtime.stack import Plan

from .checkpoint import read, read_mlp, write_checkpoint
from .layer import SparseLayer, cut_layer

PARENT = "smollm2-135m"
CALIBRATION_TOKENS = 11_000
_QUESTION_TOKENS, _ANSWER_TOKENS = 64, 160  # at most
_KEPT_SIXTEENTHS = (16, 12, 8, 6, 4)

MLP = Callable[[int, Floats], Floats]
"""(layer, normed input [tokens, d]) → update [tokens, d]."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How every MLP is cut: ``shared`` neurons for each token, and of ``experts`` equal parts of the others
    ``experts_per_token``."""

    experts: int = 16
    shared: int = 512
    experts_per_token: int = 8

    def check(self, neurons: int) -> None:
        """Raises: UsageError where an MLP with so many neurons cannot be cut so."""
        if self.experts < 2:
            raise UsageError(f"--experts {self.experts}: it must be 2 or more.")
        if not 1 <= self.experts_per_token <= self.experts:
            raise UsageError(f"--experts-per-token {self.experts_per_token}: it must be between 1 and {self.experts}.")
        rest = neurons - self.shared
        if not 1 <= self.shared < neurons or rest % self.experts:
            raise UsageError(
                f"--shared {self.shared} leaves {rest} of {neurons} neurons to {self.experts} experts; both must have "
                "some, and every expert as many as the others."
            )

    def kept(self) -> list[int]:
        """How many experts are tried, all of them first."""
        return sorted({max(1, self.experts * n // 16) for n in _KEPT_SIXTEENTHS}, reverse=True)


@dataclass(frozen=True, slots=True)
class CarvedRow:
    """``agreement``: share of answer tokens where the best next token is the dense model's. ``loss``: mean negative
    log-likelihood of the answers' tokens, in nats. ``kept`` None: the dense model itself."""

    kept: int | None
    agreement: float
    loss: float


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(
        prog="python -m benchmarks.carve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, metavar="OUT", help="the folder to write; it must not exist")
    usual = Shape()
    for name, default, words in (
        ("experts", usual.experts, "routed experts of a layer"),
        ("shared", usual.shared, "neurons of the shared expert; the others must divide by the number of experts"),
        ("experts-per-token", usual.experts_per_token, "num_experts_per_tok of the checkpoint"),
        ("seed", 0, "of the sampled questions and of the clusters"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{words} (default: {default})")
    args = parser.parse_args(argv)
    shape = Shape(args.experts, args.shared, args.experts_per_token)
    return run_command(lambda: print(table(carve(args.output, shape, seed=args.seed))), "python -m benchmarks.carve")


def carve(
    output: Path,
    shape: Shape | None = None,
    *,
    parent: str = PARENT,
    seed: int = 0,
    calibration_tokens: int = CALIBRATION_TOKENS,
    held_out_tokens: int = TOKENS,
    held_out_prompts: Sequence[Prompt] | None = None,
) -> list[CarvedRow]:
    """Write a carved checkpoint into the folder ``output``, which appears whole or not at all.

    Args:
        parent: what ``selfspec-export`` takes: a plain Llama with a chat template.
        calibration_tokens: of conversations to cut by; the last one may go beyond it.
        held_out_tokens: of answers to compare on; 0: compare nothing.
        held_out_prompts: what is answered; None: the built-in prompts.

    Returns:
        The dense model's row, then one for each number of experts kept, all of them first; none where nothing is
        compared.

    Raises:
        SelfSpecError: one sentence on what is wrong with the arguments or the parent.
        OSError: ``output`` cannot be written.
    """
    shape = shape or Shape()
    if output.exists():
        raise UsageError(f"{output} exists already; remove it, or name another folder.")
    if seed < 0 or calibration_tokens < 1:
        raise UsageError(f"--seed {seed} with {calibration_tokens} tokens: 0 or more and 1 or more are needed.")
    checkpoint, name = open_model(parent)
    _check_parent(checkpoint.config, name)
    shape.check(checkpoint.config.intermediate_size)
    with workspace(output) as folder:
        dense = Dense(checkpoint, folder / "dense")
        notify_stderr(f"{name} talks to itself: {calibration_tokens} tokens ...")
        texts = [_ids(r) for r in own_conversations(dense.model, calibration_tokens, seed)]
        notify_stderr(f"{name}: {checkpoint.config.num_layers} layers are cut ...")
        layers = cut_layers(dense, texts, shape, seed)
        write_checkpoint(folder / "new", checkpoint, layers, shape.experts_per_token)
        rows = []
        if held_out_tokens:
            notify_stderr(f"{name} answers prompts: {held_out_tokens} tokens at most ...")
            rows = compare(dense, layers, shape.kept(), record(dense.model, held_out_tokens, held_out_prompts))
        publish(folder, output)
    return rows


def _check_parent(config: ModelConfig, name: str) -> None:
    """Raises: UnsupportedModelError where a qwen2_moe would compute something else."""
    scaled = config.rope.scaling is not None or config.rope.divisors is not None
    biased = config.qkv_bias or config.output_bias or config.mlp_bias
    if config.model_type != "llama" or config.activation != "silu" or scaled or biased:
        raise UnsupportedModelError(
            f"{name} cannot be carved: it must be a llama with silu, without biases and without rope scaling, to "
            "become a qwen2_moe; name another model."
        )


class Dense:
    """The parent: its checkpoint, and a float32 artifact of it that runs sublayer by sublayer."""

    def __init__(self, checkpoint: Checkpoint, folder: Path) -> None:
        export_model(checkpoint, "dense", folder, ExportOptions("fp32", kernels="ort", partition="sublayer"))
        self.checkpoint = checkpoint
        self.config = checkpoint.config
        self.model = load(folder)

    def run(self, texts: Sequence[Sequence[int]], mlp: MLP) -> list[Floats]:
        """[tokens, d] a text behind the last layer, with ``mlp`` in the place of every MLP. All texts go through a
        layer before one goes through the next."""
        stack = Conversation(self.model.sessions).stack
        hidden = [stack.embed(np.asarray(ids, dtype=np.int64)) for ids in texts]
        ends = np.cumsum([len(rows) for rows in hidden])[:-1]
        for layer in range(self.config.num_layers):
            stream = np.concatenate([stack.run(Plan((2 * layer,)), rows, 0) for rows in hidden])
            stream += mlp(layer, self._normed(layer, stream))
            hidden = np.split(stream, ends)
        return hidden

    def _normed(self, layer: int, stream: Floats) -> Floats:
        gain = read(self.checkpoint, f"model.layers.{layer}.post_attention_layernorm.weight")
        mean_square = np.mean(stream**2, axis=1, keepdims=True) + np.float32(self.config.rms_norm_eps)
        return np.asarray(stream / np.sqrt(mean_square) * gain)


def own_conversations(model: Model, tokens: int, seed: int) -> Iterator[Recording]:
    """Questions that the model makes up where its chat template wants the user's, as in Magpie (Xu et al. 2406.08464),
    and its greedy answers, ``tokens`` of both in all."""

    def prompt(question: str) -> list[int]:
        return model.codec.encode_chat([{"role": "user", "content": question}])

    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(prompt("A"), prompt("B"), strict=False))
    opening = [token for token, _ in same]
    while tokens > 0:
        sampled = model.stream_ids(
            opening, max_new_tokens=_QUESTION_TOKENS, draft="none", temperature=1.0, top_k=50, seed=seed
        )
        asked = prompt(model.codec.decode([token.id for token in sampled]).strip())
        answer = [token.id for token in model.stream_ids(asked, max_new_tokens=_ANSWER_TOKENS, draft="prompt-lookup")]
        yield Recording(tuple(asked), tuple(answer))
        tokens -= len(asked) + len(answer)
        seed += 1


def _ids(recording: Recording) -> list[int]:
    """What runs to predict every token of the answer."""
    return [*recording.prompt_ids, *recording.answer_ids[:-1]]


def cut_layers(dense: Dense, texts: Sequence[Sequence[int]], shape: Shape, seed: int) -> list[SparseLayer]:
    """One a layer, each by the inputs that the dense layers before it make of ``texts``."""
    layers: list[SparseLayer] = []

    def cut(layer: int, x: Floats) -> Floats:
        mlp, random = read_mlp(dense.checkpoint, layer), np.random.default_rng((seed, layer))
        layers.append(cut_layer(mlp, x, shape.shared, shape.experts, random))
        return mlp.output(x)

    dense.run(texts, cut)
    return layers


def compare(
    dense: Dense, layers: Sequence[SparseLayer], kept: Sequence[int], recordings: Sequence[Recording]
) -> list[CarvedRow]:
    """The dense model on its own answers, and the carved one on the same ones with each of ``kept`` experts. All of
    them go through the layers together, since reading an MLP takes long."""
    variants = [None, *kept]
    texts = [_ids(recording) for recording in recordings]

    def mlp(layer: int, x: Floats) -> Floats:
        whole, sparse = read_mlp(dense.checkpoint, layer), layers[layer]
        return np.concatenate(
            [
                whole.output(part) if count is None else sparse.output(whole, part, count)
                for count, part in zip(variants, np.split(x, len(variants)), strict=True)
            ]
        )

    hidden = dense.run(texts * len(variants), mlp)
    judged = [
        _judge(dense.model, recordings, hidden[i * len(texts) : (i + 1) * len(texts)]) for i in range(len(variants))
    ]
    expected = judged[0][0]
    return [
        CarvedRow(count, float(np.mean(np.equal(best, expected))), loss)
        for count, (best, loss) in zip(variants, judged, strict=True)
    ]


def _judge(model: Model, recordings: Sequence[Recording], hidden: Sequence[Floats]) -> tuple[list[int], float]:
    """(best next token at every position of the answers, mean negative log-likelihood of their tokens). ``hidden``: of
    every recording behind the last layer."""
    stack = Conversation(model.sessions).stack
    best, losses = list[int](), list[float]()
    for recording, rows in zip(recordings, hidden, strict=True):
        logits = stack.logits(rows[len(recording.prompt_ids) - 1 :]).astype(np.float64)
        answers = np.take_along_axis(log_softmax(logits), np.asarray(recording.answer_ids)[:, None], axis=1)
        best += logits.argmax(axis=1).tolist()
        losses += (-answers[:, 0]).tolist()
    return best, float(np.mean(losses))


def table(rows: Sequence[CarvedRow]) -> str:
    """A row a number of experts kept."""
    names = ("experts kept", "agreement with dense", "negative log-likelihood")
    cells = (("dense" if r.kept is None else str(r.kept), f"{r.agreement:.2f}", f"{r.loss:.2f}") for r in rows)
    return markdown_table(names, cells)
