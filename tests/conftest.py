"""Toy models that really run, made without torch, and a profile cache that is not the user's.

Everything is seeded. All tests of a process share one thread: ONNX Runtime's pool is sized once. The workers of
pytest-xdist are such processes, and use each other's toys (:class:`Shared`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from filelock import FileLock
from hypothesis import settings
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from selfspec import Model, load
from selfspec.bench import machine
from selfspec.export.artifact import ExportOptions, export_model
from selfspec.export.source import open_model
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.drafters.base import Drafter, Round
from selfspec.runtime.engine import decode
from selfspec.runtime.invariance import exact_passes
from selfspec.runtime.limits import cpus
from selfspec.runtime.logprobs import TokenLogprobs
from selfspec.runtime.probe_texts import PROBE_TEXT
from selfspec.runtime.sampling import Sampling
from selfspec.runtime.stack import AS_THEY_COME, Passes
from selfspec.runtime.threads import use_threads

Array = NDArray[Any]
Weights = dict[str, NDArray[np.float32]]

THREADS = 1
GREEDY = Sampling()
BOS, EOS = 0, 1
PROMPT = "It is not the wind that worries me, it is not the wind that"

settings.register_profile("selfspec", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("selfspec")


def pytest_configure() -> None:
    """What computes beside ONNX Runtime (torch, NumPy's BLAS) has one thread too. Workers and children inherit it."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """``-n auto``: a worker for each CPU that this process may use and whose time is paid for."""
    found = cpus()
    return max(1, found.allowed if found.quota is None else min(found.allowed, int(found.quota)))


# What sets a family's config.json apart from Llama's. Every feature that a family can have is switched on somewhere.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": False, "mlp_bias": False},
    "qwen2": {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28},
    "qwen3": {"attention_bias": False, "use_sliding_window": True, "sliding_window": 12, "max_window_layers": 3},
    "gemma3_text": {
        "hidden_act": None, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 24,
        "sliding_window": 12, "sliding_window_pattern": 3, "rope_theta": 50000.0, "rope_local_base_freq": 500.0,
    },
    "smollm3": {
        "attention_bias": False, "mlp_bias": False, "no_rope_layers": [1, 0, 1, 1, 0, 1], "rope_theta": 2e6,
        "use_sliding_window": False, "sliding_window": None, "pad_token_id": 0,
    },
    "granite": {
        "attention_bias": True, "mlp_bias": True, "embedding_multiplier": 1.5, "residual_multiplier": 0.7,
        "attention_multiplier": 0.4, "logits_scaling": 3.0,
    },
    "olmo2": {"attention_bias": False},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 12, "router_jitter_noise": 0.1},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 4, "norm_topk_prob": False, "clip_qkv": 2.0},
    "qwen2_moe": {
        "num_experts": 8, "num_experts_per_tok": 4, "norm_topk_prob": False, "moe_intermediate_size": 48,
        "shared_expert_intermediate_size": 64, "decoder_sparse_step": 1, "mlp_only_layers": [1],
    },
    "qwen3_moe": {
        "num_experts": 8, "num_experts_per_tok": 4, "norm_topk_prob": True, "moe_intermediate_size": 64,
        "decoder_sparse_step": 2, "mlp_only_layers": [], "attention_bias": False,
    },
    "granitemoe": {
        "num_local_experts": 4, "num_experts_per_tok": 2, "attention_bias": False, "embedding_multiplier": 1.5,
        "residual_multiplier": 0.7, "attention_multiplier": 0.4, "logits_scaling": 3.0,
    },
}  # fmt: skip
MOE_FAMILIES = ("granitemoe", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe")
_NORMS = {
    "gemma3_text": ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                    "post_feedforward_layernorm"),
    "olmo2": ("post_attention_layernorm", "post_feedforward_layernorm"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ToySpec:
    """A random model, wild enough that its greedy text varies and its exits sometimes agree with it."""

    family: str = "llama"
    vocab: int = 320
    hidden: int = 64
    ff: int = 128
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    context: int = 256
    tied: bool = False
    rope_scaling: dict[str, Any] | None = None
    seed: int = 0
    attention: float = 1.5
    """Scale of q and k: the larger, the more the text depends on single earlier tokens."""
    embedding: float = 1.0
    """Scale of the embedding: a small one keeps a tied model from repeating its input for ever."""
    late: float = 0.2
    """How much the second half of the layers adds to the residual stream."""
    head: float = 3.0
    eos: int | list[int] | None = EOS
    bos: bool = False
    """Whether the tokenizer puts a beginning-of-sequence token in front of a text."""
    config: dict[str, Any] = field(default_factory=dict)
    """Further keys of config.json."""
    fused: bool = False
    """Whether the checkpoint is laid out as :func:`fused_experts` has it."""

    def hf_config(self) -> dict[str, Any]:
        return {
            "model_type": self.family, "hidden_act": "silu",
            "vocab_size": self.vocab, "hidden_size": self.hidden, "intermediate_size": self.ff,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim, "rms_norm_eps": 1e-5,
            "max_position_embeddings": self.context, "rope_theta": 10000.0, "rope_scaling": self.rope_scaling,
            "tie_word_embeddings": self.tied, "bos_token_id": BOS, "eos_token_id": self.eos,
        } | FAMILIES[self.family] | self.config  # fmt: skip


Matrix = Callable[[int, int, float], NDArray[np.float32]]


def sparse_layers(spec: ToySpec) -> tuple[int, ...]:
    """Layers with experts, by the config's own keys."""
    if spec.family not in MOE_FAMILIES:
        return ()
    config = spec.hf_config()
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers", [])
    return tuple(i for i in range(spec.layers) if (i + 1) % step == 0 and i not in dense)


def _expert_weights(spec: ToySpec, layer: str, matrix: Matrix, gain: float) -> Weights:
    """Router, experts and a shared expert, one tensor a matrix where the family has such a layout."""
    config, d = spec.hf_config(), spec.hidden
    count = config.get("num_experts") or config["num_local_experts"]
    ff = config.get("moe_intermediate_size", spec.ff)
    experts = [(matrix(ff, d, 1), matrix(ff, d, 1), matrix(d, ff, gain)) for _ in range(count)]
    router = matrix(count, d, 2)
    if spec.family == "granitemoe":
        return {
            f"{layer}.block_sparse_moe.router.layer.weight": router,
            f"{layer}.block_sparse_moe.input_linear.weight": np.stack([np.concatenate(e[:2]) for e in experts]),
            f"{layer}.block_sparse_moe.output_linear.weight": np.stack([e[2] for e in experts]),
        }
    mixtral = spec.family == "mixtral"
    module = f"{layer}.block_sparse_moe" if mixtral else f"{layer}.mlp"
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    weights = {f"{module}.gate.weight": router}
    for e, matrices in enumerate(experts):
        weights |= {f"{module}.experts.{e}.{n}.weight": m for n, m in zip(names, matrices, strict=True)}
    if shared := config.get("shared_expert_intermediate_size"):
        weights |= {
            f"{module}.shared_expert.gate_proj.weight": matrix(shared, d, 1),
            f"{module}.shared_expert.up_proj.weight": matrix(shared, d, 1),
            f"{module}.shared_expert.down_proj.weight": matrix(d, shared, gain),
            f"{module}.shared_expert_gate.weight": matrix(1, d, 2),
        }
    return weights


def fused_experts(weights: Weights) -> Weights:
    """The same checkpoint as transformers 5 holds it in memory, and saves it where it is told not to go back to the
    original format: the experts of a layer in two tensors of three dimensions."""
    fused, downs, ups = Weights(), dict[str, list[Array]](), dict[str, list[Array]]()
    for name, values in weights.items():
        before, _, after = name.partition(".experts.")
        if not after:
            renamed = name.replace(".block_sparse_moe.gate.", ".mlp.gate.")
            renamed = renamed.replace("input_linear.weight", "experts.gate_up_proj")
            renamed = renamed.replace("output_linear.weight", "experts.down_proj")
            fused[renamed.replace("router.layer.", "router.")] = values
            continue
        part = downs if after.endswith(("w2.weight", "down_proj.weight")) else ups
        part.setdefault(before.replace("block_sparse_moe", "mlp"), []).append(values)
    for module in ups:  # gate and up of an expert follow each other
        pairs = [np.concatenate(pair) for pair in zip(ups[module][::2], ups[module][1::2], strict=True)]
        fused |= {
            f"{module}.experts.gate_up_proj": np.stack(pairs),
            f"{module}.experts.down_proj": np.stack(downs[module]),
        }
    return fused


def toy_weights(spec: ToySpec) -> Weights:
    """Tensors under their Hugging Face names."""
    rng, config = np.random.default_rng(spec.seed), spec.hf_config()

    def matrix(rows: int, cols: int, scale: float) -> NDArray[np.float32]:
        return np.asarray(rng.standard_normal((rows, cols)) * scale / np.sqrt(cols), dtype=np.float32)

    def norm(size: int = spec.hidden) -> NDArray[np.float32]:
        centre = 0.0 if spec.family == "gemma3_text" else 1.0
        return (centre + 0.2 * rng.standard_normal(size)).astype(np.float32)

    d, q, kv = spec.hidden, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    qk_norms = {
        "qwen3": (spec.head_dim, spec.head_dim),
        "qwen3_moe": (spec.head_dim, spec.head_dim),
        "olmoe": (q, kv),
        "gemma3_text": (spec.head_dim, spec.head_dim),
        "olmo2": (q, kv),
    }
    weights = {
        "model.embed_tokens.weight": (spec.embedding * rng.standard_normal((spec.vocab, d))).astype(np.float32),
        "model.norm.weight": norm(),
    }
    for i in range(spec.layers):
        layer, gain = f"model.layers.{i}", 2.0 if i < spec.layers // 2 else 2 * spec.late
        for name in _NORMS.get(spec.family, ("input_layernorm", "post_attention_layernorm")):
            weights[f"{layer}.{name}.weight"] = norm()
        weights |= {
            f"{layer}.self_attn.q_proj.weight": matrix(q, d, spec.attention),
            f"{layer}.self_attn.k_proj.weight": matrix(kv, d, spec.attention),
            f"{layer}.self_attn.v_proj.weight": matrix(kv, d, 1),
            f"{layer}.self_attn.o_proj.weight": matrix(d, q, gain),
        }
        if i in sparse_layers(spec):
            weights |= _expert_weights(spec, layer, matrix, gain)
        else:
            weights |= {
                f"{layer}.mlp.gate_proj.weight": matrix(spec.ff, d, 1),
                f"{layer}.mlp.up_proj.weight": matrix(spec.ff, d, 1),
                f"{layer}.mlp.down_proj.weight": matrix(d, spec.ff, gain),
            }
        qkv_bias = spec.family in ("qwen2", "qwen2_moe") or config.get("attention_bias")
        biased = ["q_proj", "k_proj", "v_proj"] if qkv_bias else []
        biased += ["o_proj"] if config.get("attention_bias") else []
        biased = [f"self_attn.{name}" for name in biased]
        biased += [f"mlp.{name}_proj" for name in ("gate", "up", "down")] if config.get("mlp_bias") else []
        for name in biased:
            rows = len(weights[f"{layer}.{name}.weight"])
            weights[f"{layer}.{name}.bias"] = (0.3 * rng.standard_normal(rows)).astype(np.float32)
        for name, size in zip(("q_norm", "k_norm"), qk_norms.get(spec.family, ()), strict=False):
            weights[f"{layer}.self_attn.{name}.weight"] = norm(size)
    if not spec.tied:
        weights["lm_head.weight"] = matrix(spec.vocab, d, spec.head)
    return weights


def byte_tokenizer(vocab: int) -> Tokenizer:
    """Byte-level BPE: two special tokens, 256 bytes, then merges learnt from a fixed text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|bos|>", "<|eos|>"], show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator([PROBE_TEXT], trainer)
    return tokenizer


def word_tokenizer(vocab: int) -> Tokenizer:
    """For vocabularies smaller than the bytes: the words t0, t1, ..."""
    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(vocab)}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def write_checkpoint(
    folder: Path, spec: ToySpec, *, dtype: str = "float32", shards: int = 1, chat_template: str | None = None
) -> Path:
    """A Hugging Face folder: config, tokenizer, generation config and one or more safetensors files."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    laid_out = fused_experts(toy_weights(spec)) if spec.fused else toy_weights(spec)
    weights: dict[str, Array] = {name: w.astype(kind) for name, w in laid_out.items()}
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
    else:
        names = sorted(weights)
        files = {name: f"model-{i % shards + 1:05d}-of-{shards:05d}.safetensors" for i, name in enumerate(names)}
        for file in set(files.values()):
            save_file({name: weights[name] for name in names if files[name] == file}, folder / file)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    (folder / "config.json").write_text(json.dumps({k: v for k, v in spec.hf_config().items() if v is not None}))
    tokenizer = byte_tokenizer(spec.vocab) if spec.vocab >= 260 else word_tokenizer(spec.vocab)
    if spec.bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", BOS)])
    tokenizer.save(str(folder / "tokenizer.json"))
    generation = {} if spec.eos is None else {"eos_token_id": spec.eos}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template)
    return folder


def export_checkpoint(source: Path, output: Path, **options: Any) -> Path:
    checkpoint, name = open_model(str(source))
    return export_model(checkpoint, name, output, ExportOptions(**{"kernels": "ort"} | options)).output


@dataclass(frozen=True, slots=True)
class Stored:
    """An initialiser of an exported graph: where its bytes lie in weights.bin."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int

    def read(self, folder: Path) -> Array:
        dtype = {"FLOAT": np.float32, "UINT8": np.uint8}[self.dtype]
        data = (folder / "weights.bin").read_bytes()[self.offset : self.offset + self.length]
        return np.frombuffer(data, dtype=dtype).reshape(self.shape)


def stored_tensors(folder: Path) -> dict[tuple[str, str], Stored]:
    """(graph, initialiser) → its place; fails on one that is inside its graph."""
    found = {}
    for path in sorted(folder.glob("graphs/*/*.onnx")):
        for name, value in ir.load(path).graph.initializers.items():
            tensor = value.const_value
            assert isinstance(tensor, ir.ExternalTensor), f"{path.name} holds {name} itself"
            assert tensor.location == "weights.bin"
            assert tensor.offset is not None
            assert tensor.length is not None
            shape = tuple(int(n) for n in tensor.shape)  # type: ignore[arg-type]
            found[path.stem, name] = Stored(tensor.dtype.name, shape, tensor.offset, tensor.length)
    return found


def dequantized(folder: Path, name: str, bits: int, block_size: int = 32) -> Array:
    """A stored matrix as floats, read by this file's own rules: codes in blocks, lower half first. Tiles are read by
    the kernels' own package."""
    stored = {initializer: s for (_, initializer), s in stored_tensors(folder).items()}
    if f"{name}.tiles" in stored:
        from selfspec_kernels import tiles

        return np.asarray(tiles.dequantize(stored[f"{name}.tiles"].read(folder), bits))
    scales = stored[f"{name}.scales"].read(folder)
    rows, blocks = scales.shape

    def codes_of(key: str, count: int) -> Array:
        raw = stored[key].read(folder).reshape(rows, -1)
        if bits == 4:
            raw = np.stack([raw & 15, raw >> 4], axis=-1).reshape(rows, -1)
        return raw[:, :count].astype(np.float32)

    codes = codes_of(f"{name}.codes", blocks * block_size).reshape(rows, blocks, block_size)
    explicit = f"{name}.zero_points" in stored
    zeros = codes_of(f"{name}.zero_points", blocks) if explicit else np.full((rows, blocks), 2.0 ** (bits - 1))
    result = (codes - zeros[..., None].astype(np.float32)) * scales[..., None]
    return np.asarray(result.reshape(rows, -1), dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Run:
    """What one generation left behind."""

    tokens: tuple[int, ...]
    rounds: tuple[Round, ...]
    conversation: Conversation
    logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def drafted(self) -> int:
        return sum(r.num_drafted for r in self.rounds)

    @property
    def accepted(self) -> int:
        return sum(r.num_accepted for r in self.rounds)


class Toy:
    """An exported toy model, loaded."""

    def __init__(self, spec: ToySpec, checkpoint: Path, folder: Path) -> None:
        self.spec = spec
        self.checkpoint = checkpoint
        self.folder = folder
        self.notices: list[str] = []
        self.model: Model = load(folder, threads=THREADS, notify=self.notices.append)

    @cached_property
    def passes(self) -> Passes:
        """How ``exact`` puts rows into passes here; tests of exactness make no sense where there is no way."""
        found = exact_passes(self.model.sessions)
        if found is None:
            pytest.skip("no way to put rows into passes is row-invariant on this machine")
        return found

    @cached_property
    def prompt(self) -> list[int]:
        if self.spec.vocab < 260:
            return [i % self.spec.vocab for i in (3, 1, 4, 1, 5, 9, 2, 6)]
        return self.model.codec.encode(PROMPT)

    def conversation(self, *, exact: bool = True) -> Conversation:
        return Conversation(self.model.sessions, self.passes if exact else AS_THEY_COME, exact=exact)

    def run(
        self,
        drafter: Drafter,
        *,
        prompt: Sequence[int] | None = None,
        sampling: Sampling = GREEDY,
        count: int = 64,
        eos: frozenset[int] = frozenset(),
        exact: bool = True,
        num_logprobs: int | None = None,
    ) -> Run:
        """Generate with the engine itself, below all text."""
        conversation = self.conversation(exact=exact)
        logits = conversation.prefill(self.prompt if prompt is None else prompt)
        decoding = decode(conversation, logits, drafter, sampling, count, eos, num_logprobs)
        rounds = tuple(decoding.rounds)
        first = () if decoding.first is None else (decoding.first,)
        told = () if decoding.first_logprobs is None else (decoding.first_logprobs,)
        tokens = (*first, *(t for r in rounds for t in r.tokens))
        return Run(tokens, rounds, conversation, (*told, *(entry for r in rounds for entry in r.logprobs)))


class Shared:
    """Folders that are made once a run, by whichever worker asks first."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(self, name: str, make: Callable[[Path], object]) -> Path:
        """The folder ``name``, filled by ``make(folder)``. Workers that ask meanwhile wait for it."""
        folder, made = self._root / name, self._root / f"{name}.made"
        with FileLock(self._root / f"{name}.lock"):
            if not made.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a try that failed
                make(folder)
                made.touch()
        return folder


ToyMaker = Callable[..., Toy]
USUAL = ToySpec()
MAIN: dict[str, Any] = {"exit_layers": (2, 4, 5), "hot_vocab": 256}


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    use_threads(THREADS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SELFSPEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        # Whether this machine is busy must not decide which profiles are kept: test_profile.py says when they are not.
        patch.setattr("selfspec.runtime.model.falling_step", lambda steps: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _short_look_at_the_bandwidth() -> Iterator[None]:
    """A benchmark reads memory for seconds to learn how fast it is; no test of a benchmark needs to know."""
    measured = machine.read_bandwidth

    def short(threads: int, size: int, seconds: float) -> float:
        return measured(threads, min(size, 2**20), min(seconds, 0.01))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "read_bandwidth", short)
        yield


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """Where a worker's temporary folder lies is the run's."""
    own = tmp_path_factory.getbasetemp()
    root = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    root.mkdir(exist_ok=True)
    return Shared(root)


@pytest.fixture(scope="session")
def make_toy(shared: Shared, _own_cache: None) -> ToyMaker:
    """``make_toy(ToySpec(...), precision=...)``: made once a run and shared, so tests must not change it."""
    made: dict[str, Toy] = {}

    def make(spec: ToySpec = USUAL, *, chat_template: str | None = None, **options: Any) -> Toy:
        def write(root: Path) -> None:
            source = write_checkpoint(root / "checkpoint", spec, chat_template=chat_template)
            export_checkpoint(source, root / "artifact", **options)

        key = repr((spec, chat_template, sorted(options.items())))
        if key not in made:
            root = shared.folder(f"toy-{hashlib.sha256(key.encode()).hexdigest()[:16]}", write)
            made[key] = Toy(spec, root / "checkpoint", root / "artifact")
        return made[key]

    return make


@pytest.fixture(scope="session")
def fp32(make_toy: ToyMaker) -> Toy:
    """The usual toy: six layers cut at 2, 4 and 5, in fp32."""
    return make_toy(precision="fp32", **MAIN)


@pytest.fixture(scope="session", params=["fp32", "int8", "int4"])
def toy(request: pytest.FixtureRequest, make_toy: ToyMaker) -> Toy:
    """The usual toy in every precision."""
    return make_toy(precision=request.param, **MAIN)


@pytest.fixture(scope="session")
def tiny(make_toy: ToyMaker) -> Toy:
    """Twelve tokens, two layers, one exit: every continuation can be enumerated."""
    return make_toy(
        ToySpec(vocab=12, hidden=32, ff=64, layers=2, heads=2, kv_heads=1, context=64, late=0.7, eos=None),
        precision="fp32", exit_layers=(1,),
    )  # fmt: skip


@pytest.fixture(scope="session")
def native_kernels() -> None:
    """For tests of native kernels: they are left out where the package is not installed."""
    pytest.importorskip("selfspec_kernels", reason="selfspec-kernels is not installed: pip install ./kernels")


def changed_copy(folder: Path, out: Path, name: str, data: bytes) -> Path:
    """A copy of an artifact in which a file has other bytes, and the manifest knows them: another's artifact."""
    shutil.copytree(folder, out)
    (out / name).write_bytes(data)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (out / "manifest.json").write_text(json.dumps(manifest))
    return out


class Tools:
    """The helpers above, for tests that make their own checkpoints: test folders are no packages to import from."""

    spec = ToySpec
    weights = staticmethod(toy_weights)
    write = staticmethod(write_checkpoint)
    export = staticmethod(export_checkpoint)
    changed_copy = staticmethod(changed_copy)
    byte_tokenizer = staticmethod(byte_tokenizer)
    stored = staticmethod(stored_tensors)
    dequantized = staticmethod(dequantized)
    families = FAMILIES
    moe_families = MOE_FAMILIES
    sparse_layers = staticmethod(sparse_layers)
    fused = staticmethod(fused_experts)


@pytest.fixture(scope="session")
def tools() -> Tools:
    return Tools()
