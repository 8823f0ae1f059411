"""What a model is: one frozen configuration, with one translation from Hugging Face and one from GGUF.

Standard library only: the runtime on a box imports this. Nothing else in the project reads foreign key names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import ArtifactError, CheckpointError, UnsupportedModelError, unknown_name

SUPPORTED_MODEL_TYPES = ("llama",)
MAX_LAYERS = 10_000  # far beyond any model; what a damaged file may say must not fill the memory


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's rope scaling: long wavelengths are divided by ``factor``, short ones kept, a ramp between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        for value in (self.factor, self.low_freq_factor, self.high_freq_factor, self.original_max_position_embeddings):
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
                raise UnsupportedModelError(f"model config: rope scaling uses {value!r}; it must be a positive number.")
        if self.low_freq_factor >= self.high_freq_factor:
            raise UnsupportedModelError(
                f"model config: rope scaling's low_freq_factor {self.low_freq_factor} is not below its "
                f"high_freq_factor {self.high_freq_factor}."
            )


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding. ``divisors`` (one a frequency, as in GGUF's rope_freqs) excludes ``scaling``."""

    theta: float
    scaling: Llama3Scaling | None = None
    divisors: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for value in (self.theta, *(self.divisors or ())):
            if not isinstance(value, int | float) or not 0 < value < 1e30:
                raise UnsupportedModelError(f"model config: rope uses {value!r}, where a positive number was expected.")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only model. Sizes are counts of elements; a feature that is absent is ``None``."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    context_length: int
    rope: RopeConfig
    tie_word_embeddings: bool

    def __post_init__(self) -> None:
        if not isinstance(self.tie_word_embeddings, bool):
            raise UnsupportedModelError(f"model config: tie_word_embeddings is {self.tie_word_embeddings!r}.")
        for name in (
            "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_attention_heads",
            "num_kv_heads", "head_dim", "context_length",
        ):  # fmt: skip
            value = getattr(self, name)
            limit = MAX_LAYERS if name == "num_layers" else 2**31 - 1
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= limit:
                raise UnsupportedModelError(f"model config: {name} is {value!r}; it must be between 1 and {limit}.")
        if not (math.isfinite(self.rms_norm_eps) and self.rms_norm_eps > 0):
            raise UnsupportedModelError(f"model config: rms_norm_eps is {self.rms_norm_eps!r}; it must be positive.")
        if self.num_attention_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"model config: {self.num_attention_heads} attention heads do not divide into "
                f"{self.num_kv_heads} key/value heads."
            )
        if self.head_dim % 16:
            raise UnsupportedModelError(
                f"model config: head_dim is {self.head_dim}; the attention kernel needs a multiple of 16."
            )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelConfig:
        """Rebuild from :meth:`to_dict`.

        Raises:
            ArtifactError: a field is missing, unknown or of the wrong type.
        """
        try:
            rope = dict(data["rope"])
            scaling, divisors = rope.get("scaling"), rope.get("divisors")
            rope["scaling"] = None if scaling is None else Llama3Scaling(**scaling)
            rope["divisors"] = None if divisors is None else tuple(float(x) for x in divisors)
            return cls(**{**data, "rope": RopeConfig(**rope)})
        except (KeyError, TypeError, ValueError, OverflowError, UnsupportedModelError) as error:
            raise ArtifactError(f"the manifest's model config is damaged ({error}); export the model again.") from error


# Keys of a config.json that change nothing in the forward pass this project builds.
_INERT_KEYS = frozenset(
    "architectures model_type torch_dtype dtype transformers_version use_cache attention_dropout "
    "initializer_range bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id is_llama_config "
    "transformers.js_config output_attentions output_hidden_states return_dict torchscript "
    "task_specific_params problem_type finetuning_task id2label label2id prefix tokenizer_class "
    "chunk_size_feed_forward is_decoder is_encoder_decoder begin_suppress_tokens suppress_tokens max_length "
    "min_length do_sample num_beams temperature top_k top_p unsloth_version unsloth_fixed "
    "attn_implementation resid_pdrop hidden_dropout".split()
)
_LLAMA_KEYS = frozenset(
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "rms_norm_eps max_position_embeddings rope_theta rope_scaling rope_parameters tie_word_embeddings hidden_act "
    "attention_bias mlp_bias pretraining_tp".split()
)


def _require(data: Mapping[str, Any], key: str, where: str) -> Any:
    if data.get(key) is None:
        raise CheckpointError(f"{where} has no {key!r}; without it the model's shape is unknown.")
    return data[key]


def _whole(value: Any, key: str, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise CheckpointError(f"{where}: {key!r} is {value!r}, where a whole number was expected.")
    return value


def _number(value: Any, key: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CheckpointError(f"{where}: {key!r} is {value!r}, where a number was expected.")
    try:
        return float(value)
    except OverflowError:
        raise CheckpointError(f"{where}: {key!r} is too large for a number.") from None


def check_model_type(model_type: Any, where: str) -> str:
    """The model type, if this version implements it.

    Raises:
        UnsupportedModelError: it does not; the message lists the known ones.
    """
    if model_type not in SUPPORTED_MODEL_TYPES:
        raise UnsupportedModelError(f"{where}: {unknown_name('model type', str(model_type), SUPPORTED_MODEL_TYPES)}")
    return str(model_type)


def from_hf(data: Mapping[str, Any]) -> ModelConfig:
    """Translate a Hugging Face ``config.json``.

    Raises:
        CheckpointError: a needed key is missing or not a number.
        UnsupportedModelError: unknown model type, or a feature this version lacks, named.
    """
    where = "config.json"
    model_type = check_model_type(data.get("model_type"), where)
    for key, neutral in (("attention_bias", False), ("mlp_bias", False), ("hidden_act", "silu")):
        if data.get(key, neutral) != neutral:
            raise UnsupportedModelError(f"{where}: {key} = {data[key]!r} is not supported; only {neutral!r} is.")
    unknown = [
        key
        for key, value in data.items()
        if key not in _LLAMA_KEYS | _INERT_KEYS and not key.startswith("_") and value not in (None, False, [], {})
    ]
    if unknown:
        raise UnsupportedModelError(
            f"{where}: {', '.join(sorted(unknown))} may change what the model computes and is not supported."
        )

    def size(key: str) -> int:
        return _whole(_require(data, key, where), key, where)

    heads, hidden = size("num_attention_heads"), size("hidden_size")
    head_dim = data.get("head_dim")
    if head_dim is None:
        if heads <= 0 or hidden % heads:
            raise UnsupportedModelError(f"{where}: hidden_size {hidden} does not divide into {heads} attention heads.")
        head_dim = hidden // heads
    return ModelConfig(
        model_type=model_type,
        vocab_size=size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=size("intermediate_size"),
        num_layers=size("num_hidden_layers"),
        num_attention_heads=heads,
        num_kv_heads=_whole(data.get("num_key_value_heads") or heads, "num_key_value_heads", where),
        head_dim=_whole(head_dim, "head_dim", where),
        rms_norm_eps=_number(_require(data, "rms_norm_eps", where), "rms_norm_eps", where),
        context_length=size("max_position_embeddings"),
        rope=_rope_from_hf(data, where),
        tie_word_embeddings=data.get("tie_word_embeddings", False),
    )


def _rope_from_hf(data: Mapping[str, Any], where: str) -> RopeConfig:
    # transformers 5 writes rope_parameters, older versions rope_theta beside rope_scaling.
    raw = data.get("rope_parameters") or data.get("rope_scaling") or {}
    if not isinstance(raw, Mapping):
        raise CheckpointError(f"{where}: rope settings are {raw!r}, where an object was expected.")
    for source in (raw, data):
        if source.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise UnsupportedModelError(
                f"{where}: partial_rotary_factor = {source['partial_rotary_factor']!r} is not supported; only 1 is."
            )
    theta = _number(raw.get("rope_theta") or data.get("rope_theta") or 10000.0, "rope_theta", where)
    kind = raw.get("rope_type") or raw.get("type") or "default"
    if kind == "default":
        return RopeConfig(theta)
    if kind != "llama3":
        raise UnsupportedModelError(f"{where}: {unknown_name('rope scaling', str(kind), ('default', 'llama3'))}")

    def number(key: str) -> float:
        return _number(_require(raw, key, f"{where} rope scaling"), key, where)

    return RopeConfig(
        theta,
        scaling=Llama3Scaling(
            factor=number("factor"),
            low_freq_factor=number("low_freq_factor"),
            high_freq_factor=number("high_freq_factor"),
            original_max_position_embeddings=_whole(
                _require(raw, "original_max_position_embeddings", where), "original_max_position_embeddings", where
            ),
        ),
    )


def from_gguf(
    data: Mapping[str, Any], *, tied: bool, vocab_size: int, rope_divisors: Sequence[float] | None = None
) -> ModelConfig:
    """Translate GGUF metadata.

    Args:
        data: metadata key → value.
        tied: whether the file lacks an output matrix of its own.
        vocab_size: rows of the embedding tensor.
        rope_divisors: the ``rope_freqs.weight`` tensor, where the file has one.

    Raises:
        CheckpointError: a needed key is missing or not a number.
        UnsupportedModelError: unknown architecture, or a feature this version lacks, named.
    """
    where = "the GGUF metadata"
    arch = check_model_type(data.get("general.architecture"), where)
    scaling = data.get(f"{arch}.rope.scaling.type")
    if scaling not in (None, "none"):
        raise UnsupportedModelError(f"{where}: rope scaling {scaling!r} is not supported.")
    if data.get(f"{arch}.rope.scale_linear") not in (None, 1, 1.0):
        raise UnsupportedModelError(f"{where}: {arch}.rope.scale_linear is set, which is not supported.")
    for key in ("expert_count", "attention.sliding_window", "attn_logit_softcapping"):
        if data.get(f"{arch}.{key}"):
            raise UnsupportedModelError(f"{where}: {arch}.{key} is set, which is not supported.")

    def size(key: str) -> int:
        return _whole(_require(data, f"{arch}.{key}", where), key, where)

    heads, hidden = size("attention.head_count"), size("embedding_length")
    if heads <= 0:
        raise UnsupportedModelError(f"{where}: {heads} attention heads.")
    head_dim = _whole(data.get(f"{arch}.attention.key_length") or hidden // heads, "attention.key_length", where)
    rotary = data.get(f"{arch}.rope.dimension_count")
    if rotary not in (None, head_dim):
        raise UnsupportedModelError(f"{where}: partial rotary ({rotary} of {head_dim} dimensions) is not supported.")
    eps_key = f"{arch}.attention.layer_norm_rms_epsilon"
    return ModelConfig(
        model_type=arch,
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=size("feed_forward_length"),
        num_layers=size("block_count"),
        num_attention_heads=heads,
        num_kv_heads=_whole(data.get(f"{arch}.attention.head_count_kv") or heads, "attention.head_count_kv", where),
        head_dim=head_dim,
        rms_norm_eps=_number(_require(data, eps_key, where), eps_key, where),
        context_length=size("context_length"),
        rope=RopeConfig(
            _number(data.get(f"{arch}.rope.freq_base") or 10000.0, "rope.freq_base", where),
            divisors=None if rope_divisors is None else tuple(float(x) for x in rope_divisors),
        ),
        tie_word_embeddings=tied,
    )
