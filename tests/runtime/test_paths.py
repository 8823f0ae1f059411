"""What a draft path shares with the full model, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from selfspec.runtime.drafters.base import NoDrafter
from selfspec.runtime.drafters.model_path import PathDrafter, Threshold
from selfspec.runtime.paths import FULL, HOT, DraftPath, draft_path, exit_path, first_own_sublayer
from selfspec.runtime.stack import Plan

if TYPE_CHECKING:
    from tests.conftest import Toy


@pytest.mark.parametrize(
    ("plan", "sparse", "own"),
    [
        (Plan.layers(0, 3), (), 6),
        (Plan((0, 1, 2, 4, 5)), (), 3),  # one MLP skipped
        (Plan((0, 1, 4, 5)), (), 2),
        (Plan((2, 3)), (), 0),
        (Plan.layers(0, 3, 1), (0, 1, 2), 1),  # the first attention is the target's own
        (Plan.layers(0, 3, 1), (2,), 5),
        (Plan.layers(0, 2, 1), (2,), 4),
        (Plan.layers(0, 3), (0, 1, 2), 6),
    ],
)
def test_a_path_is_the_targets_own_until_it_skips_or_runs_fewer_experts(
    plan: Plan, sparse: tuple[int, ...], own: int
) -> None:
    assert first_own_sublayer(plan, sparse) == own


def test_the_shared_part_ends_where_the_artifact_is_cut(fp32: Toy) -> None:
    """Exits after layers 2, 4 and 5 of 6: a path that skips layer 3 shares two layers, where verification can begin."""
    manifest = fp32.model.artifact.manifest
    skipping = draft_path("skip", Plan((0, 1, 2, 3, 4, 5, 8, 9, 10, 11)), HOT, manifest)
    assert skipping.shared == 4
    assert skipping.shared_plan == Plan.layers(0, 2)
    assert skipping.own_plan == Plan((4, 5, 8, 9, 10, 11))
    assert draft_path("exit", Plan.layers(0, 4), HOT, manifest) == replace(exit_path(4), name="exit")


def test_a_path_that_shares_some_layers_gives_plain_text(fp32: Toy) -> None:
    """Its own KV rows are wrong and must be overwritten; the shared ones are kept."""
    skipping = DraftPath("skip the middle", Plan((*range(4), *range(8, 12))), FULL, 4)
    plain = fp32.run(NoDrafter(), count=60)
    drafted = fp32.run(PathDrafter(skipping, 4, rule=Threshold(0.0)), count=60)
    assert drafted.tokens == plain.tokens
    assert drafted.drafted > drafted.accepted


def test_hidden_states_of_the_shared_part_are_handed_over(fp32: Toy) -> None:
    skipping = DraftPath("skip the middle", Plan((*range(4), *range(8, 12))), FULL, 4)
    conversation = fp32.conversation()
    conversation.tokens.append(int(conversation.prefill(fp32.prompt).argmax()))
    start = conversation.kv.length
    draft = PathDrafter(skipping, 3, rule=Threshold(0.0)).propose(conversation, 3)
    assert draft.prefix is not None
    assert draft.prefix.sublayer == 4
    stack, first = conversation.stack, np.asarray(conversation.tokens[-1:])
    np.testing.assert_array_equal(draft.prefix.hidden[:1], stack.run(Plan.layers(0, 2), stack.embed(first), start))
