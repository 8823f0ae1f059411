"""Losslessness for a tiny model of every family: windows, biases, norms of q and k, layers that do not turn.

The toys' windows (12 positions) are shorter than their prompts, so that every draft and every rollback crosses one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from selfspec.runtime.drafters.base import Drafter, NoDrafter
from selfspec.runtime.drafters.model_path import PathDrafter, Threshold
from selfspec.runtime.drafters.prompt_lookup import PromptLookup
from selfspec.runtime.paths import exit_path
from selfspec.runtime.sampling import Sampling

if TYPE_CHECKING:
    from tests.conftest import Tools, Toy

FAMILIES = (
    "gemma3_text", "granite", "granitemoe", "llama", "mixtral", "olmo2", "olmoe", "qwen2", "qwen2_moe", "qwen3",
    "qwen3_moe", "smollm3",
)  # fmt: skip
LAYERS = 6
DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "early exit 2": lambda: PathDrafter(exit_path(2), 4, rule=Threshold(0.0)),
    "early exit 4": lambda: PathDrafter(exit_path(4), 3),
    "early exit 5": lambda: PathDrafter(exit_path(5), 7, rule=Threshold(0.1)),
    "prompt lookup": lambda: PromptLookup(),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["fp32", "int8", "int4"])
def member(request: pytest.FixtureRequest, family: str, make_toy: Callable[..., Toy], tools: Tools) -> Toy:
    return make_toy(
        tools.spec(family=family, layers=LAYERS), precision=request.param, exit_layers=(2, 4, 5), hot_vocab=256
    )


def test_the_list_here_is_the_list_of_families(tools: Tools) -> None:
    """A family added elsewhere and not tested here."""
    assert sorted(tools.families) == list(FAMILIES)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=4)], ids=["greedy", "warm"])
def test_text_is_the_same_whatever_drafts(member: Toy, sampling: Sampling) -> None:
    """A rolled back row that a window still sees, or an exit whose hidden state was scaled twice."""
    plain = member.run(NoDrafter(), sampling=sampling, count=70)
    drafted = {name: member.run(make(), sampling=sampling, count=70) for name, make in DRAFTERS.items()}
    for name, run in drafted.items():
        assert run.tokens == plain.tokens, name
        assert run.conversation.kv.length == plain.conversation.kv.length, name
    runs = drafted.values()
    assert 0 < sum(r.accepted for r in runs) < sum(r.drafted for r in runs), "no draft was right, or none was wrong"
    assert len(set(plain.tokens)) > 8, "a text this even would pass whatever the engine did"


def test_a_text_longer_than_the_window_depends_on_what_the_window_hides_only_through_full_layers(
    make_toy: Callable[..., Toy], tools: Tools
) -> None:
    """All layers slide: a token further back than layers times the window can change nothing; a nearer one does."""
    layers, window = 2, 12
    config = {"sliding_window": window, "sliding_window_pattern": 100}
    toy = make_toy(tools.spec(family="gemma3_text", layers=layers, config=config), precision="fp32", exit_layers=(1,))
    ids = np.random.default_rng(0).integers(2, toy.spec.vocab, 60)

    def last_logits(changed: int) -> object:
        other = ids.copy()
        other[changed] = (other[changed] + 7) % toy.spec.vocab
        return toy.conversation().prefill(other.tolist()).tolist()

    same = toy.conversation().prefill(ids.tolist()).tolist()
    reach = layers * (window - 1)  # each layer looks back window - 1 positions beyond its own
    assert last_logits(len(ids) - 1 - reach - 1) == same
    assert last_logits(len(ids) - 1 - reach) != same
