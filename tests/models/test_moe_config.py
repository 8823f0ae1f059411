"""What the five families with experts say of them in config.json, and what of it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from selfspec.errors import ArtifactError, SelfSpecError, UnsupportedModelError
from selfspec.models.config import ModelConfig, MoEConfig
from selfspec.models.gguf_config import model_type_of
from selfspec.models.hf_config import from_hf

if TYPE_CHECKING:
    from tests.conftest import Tools

SIX = tuple(range(6))
EXPECTED = {
    "mixtral": MoEConfig(4, 2, 128, SIX, normalize=True),
    "olmoe": MoEConfig(8, 4, 128, SIX),
    "qwen2_moe": MoEConfig(8, 4, 48, (0, 2, 3, 4, 5), shared_size=64, shared_gate=True),
    "qwen3_moe": MoEConfig(8, 4, 64, (1, 3, 5), normalize=True),
    "granitemoe": MoEConfig(4, 2, 128, SIX, softmax="selected"),
}


def config_of(tools: Tools, family: str, **changes: Any) -> ModelConfig:
    data = tools.spec(family=family).hf_config() | changes
    return from_hf({key: value for key, value in data.items() if value is not ...})


@pytest.mark.parametrize("family", EXPECTED)
def test_each_family_says_how_its_experts_are_chosen_and_where(tools: Tools, family: str) -> None:
    config = config_of(tools, family)
    assert config.moe == EXPECTED[family]
    assert ModelConfig.from_dict(config.to_dict()) == config
    assert (config.clip_qkv, config.qk_norm) == ((2.0, "projection") if family == "olmoe" else (None, config.qk_norm))


def test_what_a_key_changes(tools: Tools) -> None:
    """Values that published models have."""
    assert config_of(tools, "olmoe", norm_topk_prob=True, clip_qkv=None).clip_qkv is None
    moe = config_of(tools, "qwen3_moe", decoder_sparse_step=1, mlp_only_layers=[0, 5], norm_topk_prob=...).moe
    assert moe is not None
    assert (moe.layers, moe.normalize) == ((1, 2, 3, 4), False)
    assert config_of(tools, "mixtral", sliding_window=None).sliding_layers == ()
    assert config_of(tools, "mixtral").sliding_layers == SIX
    assert not config_of(tools, "qwen2_moe", qkv_bias=False).qkv_bias
    assert config_of(tools, "olmoe", rms_norm_eps=...).rms_norm_eps == 1e-5
    assert config_of(tools, "mixtral", rope_theta=...).rope.theta == 1e6
    for inert in ({"router_aux_loss_coef": 0.02}, {"output_router_logits": True}, {"router_jitter_noise": 0.3}):
        assert config_of(tools, "mixtral", **inert) == config_of(tools, "mixtral")


@pytest.mark.parametrize(
    ("family", "changes", "sentence"),
    [
        ("mixtral", {"num_experts_per_tok": 0}, "experts_per_token is 0"),
        ("mixtral", {"num_experts_per_tok": 5}, "experts_per_token is 5; it must be between 1 and 4"),
        ("mixtral", {"num_local_experts": 0}, "num_experts is 0"),
        ("mixtral", {"num_local_experts": 10**6}, "num_experts is 1000000"),
        ("mixtral", {"num_local_experts": ...}, "num_experts or num_local_experts, and neither is there"),
        ("olmoe", {"num_experts_per_tok": ...}, "has no 'num_experts_per_tok'"),
        ("olmoe", {"clip_qkv": -1.0}, "must be a positive number"),
        ("olmoe", {"norm_topk_prob": 1}, "'norm_topk_prob' is 1, where true or false"),
        ("olmoe", {"routed_scaling_factor": 2.5}, "routed_scaling_factor may change what the model computes"),
        ("qwen3_moe", {"n_group": 4, "topk_group": 2}, "n_group, topk_group may change"),
        ("qwen3_moe", {"scoring_func": "sigmoid"}, "scoring_func may change"),
        ("qwen3_moe", {"moe_intermediate_size": 0}, "expert_size is 0"),
        ("qwen3_moe", {"num_local_experts": 4}, "num_experts or num_local_experts, and they differ"),
        ("mixtral", {"num_local_experts": 4096, "num_hidden_layers": 10_000}, "more than 100,000 in all"),
        ("qwen3_moe", {"mlp_only_layers": [0, 1, 2, 3, 4, 5]}, "no layer of it has experts"),
        ("qwen3_moe", {"mlp_only_layers": ["0"]}, "a list of layer numbers"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step must be positive"),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 8}, "use_sliding_window = true is not supported"),
        ("qwen2_moe", {"shared_expert_intermediate_size": ...}, "has no 'shared_expert_intermediate_size'"),
        ("qwen2_moe", {"shared_expert_intermediate_size": -64}, "shared_expert_intermediate_size is -64"),
        ("qwen2_moe", {"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size is 0"),
        ("granitemoe", {"hidden_act": "gelu_pytorch_tanh"}, "experts with the activation gelu_tanh"),
        ("granitemoe", {"shared_intermediate_size": 512}, "shared_intermediate_size may change"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(
    tools: Tools, family: str, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SelfSpecError, match=sentence):
        config_of(tools, family, **changes)


@pytest.mark.parametrize(
    "change",
    [
        {"softmax": "none"}, {"layers": [0, 6]}, {"layers": [1, 1]}, {"layers": []}, {"layers": 3}, {"layers": ["0"]},
        {"layers": [0, True]},
        {"num_experts": True}, {"normalize": 1}, {"scale": 0}, {"scale": "1"}, {"jitter": 1}, {"experts_per_token": 9},
    ],
)  # fmt: skip
def test_damaged_experts_in_a_manifest_are_an_artifact_error(tools: Tools, change: dict[str, Any]) -> None:
    data = config_of(tools, "olmoe").to_dict()
    with pytest.raises(ArtifactError):
        ModelConfig.from_dict(data | {"moe": data["moe"] | change})


def test_a_gguf_with_experts_is_refused() -> None:
    """Its tensors are fused otherwise, and nobody has compared them."""
    for architecture, name in (("olmoe", "olmoe"), ("qwen2moe", "qwen2_moe"), ("qwen3moe", "qwen3_moe")):
        with pytest.raises(UnsupportedModelError, match=f"{name} has experts, which are read of Hugging Face folders"):
            model_type_of(architecture)


@pytest.mark.reference
@pytest.mark.parametrize("family", EXPECTED)
def test_configs_are_read_as_transformers_saves_them(tools: Tools, family: str, tmp_path: Path) -> None:
    """It renames keys on the way: num_experts of qwen3_moe comes out as num_local_experts."""
    from transformers import AutoConfig

    data = tools.spec(family=family).hf_config()
    AutoConfig.for_model(**data).save_pretrained(tmp_path)
    assert from_hf(json.loads((tmp_path / "config.json").read_text())) == from_hf(data)
