"""What a model is: one frozen configuration, whatever file format it came from.

Standard library only: the runtime on a box imports this. ``hf_config`` and ``gguf_config`` translate into it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import ArtifactError, UnsupportedModelError, unknown_name

SUPPORTED_MODEL_TYPES = (
    "gemma3_text", "granite", "granitemoe", "llama", "mixtral", "olmo2", "olmoe", "qwen2", "qwen2_moe", "qwen3",
    "qwen3_moe", "smollm3",
)  # fmt: skip
MOE_MODEL_TYPES = ("granitemoe", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe")
ACTIVATIONS = ("silu", "gelu_tanh")
QK_NORMS = ("head", "projection")
ROUTER_SOFTMAXES = ("all", "selected")
MAX_EXPERTS = 4096
MAX_ALL_EXPERTS = 100_000  # of all layers; twice as many as the largest models have
MAX_LAYERS = 10_000  # far beyond any model; what a damaged file may say must not fill the memory


def _demand_positive(where: str, *values: Any) -> None:
    for value in values:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
            raise UnsupportedModelError(f"model config: {where} uses {value!r}; it must be a positive number.")


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Position interpolation (Chen et al. 2306.15595): every frequency is divided by ``factor``."""

    factor: float
    rope_type: str = "linear"

    def __post_init__(self) -> None:
        _demand_positive("rope scaling", self.factor)


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's rope scaling: long wavelengths are divided by ``factor``, short ones kept, a ramp between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int
    rope_type: str = "llama3"

    def __post_init__(self) -> None:
        _demand_positive(
            "rope scaling",
            self.factor,
            self.low_freq_factor,
            self.high_freq_factor,
            self.original_max_position_embeddings,
        )
        if self.low_freq_factor >= self.high_freq_factor:
            raise UnsupportedModelError(
                f"model config: rope scaling's low_freq_factor {self.low_freq_factor} is not below its "
                f"high_freq_factor {self.high_freq_factor}."
            )


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al. 2309.00071): fast dimensions keep their frequency, slow ones are divided by ``factor``, a ramp
    between; cosines and sines are multiplied by ``attention_factor``. ``truncate``: the ramp's ends are whole."""

    factor: float
    original_max_position_embeddings: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    rope_type: str = "yarn"

    def __post_init__(self) -> None:
        _demand_positive(
            "rope scaling",
            self.factor,
            self.original_max_position_embeddings,
            self.attention_factor,
            self.beta_fast,
            self.beta_slow,
        )


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling
ROPE_SCALINGS: dict[str, type[RopeScaling]] = {
    "linear": LinearScaling,
    "llama3": Llama3Scaling,
    "yarn": YarnScaling,
}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding. ``divisors`` (one a frequency, as in GGUF's rope_freqs) excludes ``scaling``."""

    theta: float
    scaling: RopeScaling | None = None
    divisors: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _demand_positive("rope", self.theta, *(self.divisors or ()))
        if self.theta <= 1:
            raise UnsupportedModelError(f"model config: rope theta is {self.theta}; it must be above 1.")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RopeConfig:
        rope = dict(data)
        scaling, divisors = rope.get("scaling"), rope.get("divisors")
        rope["scaling"] = None if scaling is None else ROPE_SCALINGS[scaling["rope_type"]](**scaling)
        rope["divisors"] = None if divisors is None else tuple(float(x) for x in divisors)
        return cls(**rope)


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """The experts of a model. ``layers`` have them, all others a dense MLP of the model's ``intermediate_size``.

    A router gives each expert a logit and the best ``experts_per_token`` (k) run, each an MLP of width ``expert_size``.
    Their outputs are weighted by a softmax over the k logits ('selected') or over all of them ('all'), then divided by
    their sum where ``normalize``, then multiplied by ``scale``. ``shared_size``: width of an expert that every token
    has, 0 for none; with ``shared_gate`` its output is multiplied by a sigmoid of its own.
    """

    num_experts: int
    experts_per_token: int
    expert_size: int
    layers: tuple[int, ...]
    softmax: str = "all"
    normalize: bool = False
    scale: float = 1.0
    shared_size: int = 0
    shared_gate: bool = False

    def __post_init__(self) -> None:
        for name, least, most in (
            ("num_experts", 1, MAX_EXPERTS),
            ("experts_per_token", 1, self.num_experts),
            ("expert_size", 1, 2**31 - 1),
            ("shared_size", 0, 2**31 - 1),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise UnsupportedModelError(
                    f"model config: {name} is {value!r}; it must be between {least} and {most}."
                )
        if not all(isinstance(flag, bool) for flag in (self.normalize, self.shared_gate)):
            raise UnsupportedModelError("model config: normalize and shared_gate of experts must be true or false.")
        _demand_positive("scale of experts", self.scale)
        if self.softmax not in ROUTER_SOFTMAXES:
            raise UnsupportedModelError(
                f"model config: {unknown_name('softmax of a router', str(self.softmax), ROUTER_SOFTMAXES)}"
            )
        if any(isinstance(i, bool) for i in self.layers) or not self.layers or [*self.layers] != sorted({*self.layers}):
            raise UnsupportedModelError("model config: no layer has experts, or their order is wrong.")
        if self.num_experts * len(self.layers) > MAX_ALL_EXPERTS:
            raise UnsupportedModelError(
                f"model config: {self.num_experts} experts in each of {len(self.layers)} layers are more than "
                f"{MAX_ALL_EXPERTS:,} in all, which is beyond this version."
            )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MoEConfig:
        return cls(**{**data, "layers": tuple(data["layers"])})


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only model. Sizes are counts of elements; a feature that is absent has its neutral default.

    ``attention_scale`` multiplies q·k, ``logits_divisor`` divides the logits, ``qk_norm`` is an RMS norm of q and k,
    per 'head' or over the whole 'projection'. Layers in ``sliding_layers`` see the last ``sliding_window`` positions,
    their own included, and turn by ``local_rope`` where there is one; layers in ``nope_layers`` do not turn at all.
    ``clip_qkv`` bounds the elements of q, k and v, q and k after their norm. ``moe``: None where no layer has experts.
    """

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
    attention_scale: float
    activation: str = "silu"
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: str | None = None
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_divisor: float = 1.0
    sliding_window: int | None = None
    sliding_layers: tuple[int, ...] = ()
    nope_layers: tuple[int, ...] = ()
    local_rope: RopeConfig | None = None
    clip_qkv: float | None = None
    moe: MoEConfig | None = None

    def __post_init__(self) -> None:
        for name in ("tie_word_embeddings", "qkv_bias", "output_bias", "mlp_bias"):
            if not isinstance(getattr(self, name), bool):
                raise UnsupportedModelError(f"model config: {name} is {getattr(self, name)!r}.")
        for name in (
            "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_attention_heads",
            "num_kv_heads", "head_dim", "context_length",
        ):  # fmt: skip
            value = getattr(self, name)
            limit = MAX_LAYERS if name == "num_layers" else 2**31 - 1
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= limit:
                raise UnsupportedModelError(f"model config: {name} is {value!r}; it must be between 1 and {limit}.")
        for name in (
            "rms_norm_eps", "attention_scale", "embedding_multiplier", "residual_multiplier", "logits_divisor",
        ):  # fmt: skip
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise UnsupportedModelError(f"model config: {name} is {value!r}; it must be positive.")
        if self.activation not in ACTIVATIONS:
            raise UnsupportedModelError(f"model config: {unknown_name('activation', self.activation, ACTIVATIONS)}")
        if self.qk_norm not in (None, *QK_NORMS):
            raise UnsupportedModelError(f"model config: {unknown_name('q/k norm', str(self.qk_norm), QK_NORMS)}")
        self._check_attention()
        self._check_experts()

    def _check_experts(self) -> None:
        if self.moe is None:
            return
        if any(not isinstance(i, int) or not 0 <= i < self.num_layers for i in self.moe.layers):
            raise UnsupportedModelError(f"model config: a layer beyond {self.num_layers - 1} has experts.")
        if self.activation != "silu":
            raise UnsupportedModelError(
                f"model config: experts with the activation {self.activation} are not supported."
            )

    def _check_attention(self) -> None:
        if self.num_attention_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"model config: {self.num_attention_heads} attention heads do not divide into "
                f"{self.num_kv_heads} key/value heads."
            )
        if self.head_dim % 16:
            raise UnsupportedModelError(
                f"model config: head_dim is {self.head_dim}; the attention kernel needs a multiple of 16."
            )
        for name in ("sliding_layers", "nope_layers"):
            layers = getattr(self, name)
            if any(not isinstance(i, int) or not 0 <= i < self.num_layers for i in layers):
                raise UnsupportedModelError(f"model config: {name} names a layer beyond {self.num_layers - 1}.")
        if bool(self.sliding_layers) != (self.sliding_window is not None):
            raise UnsupportedModelError("model config: sliding layers and a sliding window go together.")
        if self.clip_qkv is not None:
            _demand_positive("clip_qkv", self.clip_qkv)
            if self.qk_norm == "head":
                raise UnsupportedModelError("model config: clip_qkv beside norms of single heads is not supported.")
        if self.sliding_window is not None and not 0 < self.sliding_window < 2**31:
            raise UnsupportedModelError(f"model config: sliding_window is {self.sliding_window}; it must be positive.")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelConfig:
        """Rebuild from :meth:`to_dict`.

        Raises:
            ArtifactError: a field is missing, unknown or of the wrong type.
        """
        try:
            fields = dict(data)
            fields["rope"] = RopeConfig.from_dict(data["rope"])
            local = data.get("local_rope")
            fields["local_rope"] = None if local is None else RopeConfig.from_dict(local)
            for name in ("sliding_layers", "nope_layers"):
                fields[name] = tuple(data.get(name, ()))
            fields["moe"] = None if data.get("moe") is None else MoEConfig.from_dict(data["moe"])
            config = cls(**fields)
            if not isinstance(config.model_type, str) or not config.model_type.isprintable():  # it is shown
                raise TypeError(f"model_type is {config.model_type!r}")
            return config
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError, UnsupportedModelError) as error:
            raise ArtifactError(f"the manifest's model config is damaged ({error}); export the model again.") from error


def check_model_type(model_type: Any, where: str) -> str:
    """The model type, if this version implements it.

    Raises:
        UnsupportedModelError: it does not; the message lists the known ones.
    """
    if model_type not in SUPPORTED_MODEL_TYPES:
        raise UnsupportedModelError(f"{where}: {unknown_name('model type', str(model_type), SUPPORTED_MODEL_TYPES)}")
    return str(model_type)
