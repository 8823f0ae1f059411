"""Penalties by hand: which tokens they touch, and by how much."""

from __future__ import annotations

import numpy as np
import pytest

from selfspec.runtime.penalties import NO_PENALTIES, penalties_for
from selfspec.runtime.sampling import Floats, Sampling, distribution
from selfspec.runtime.verify import Verdict, verify_matching, verify_sampled

LOGITS = np.asarray([4.0, -4.0, 1.0, 0.0, 2.0], dtype=np.float32)


def applied(sampling: Sampling, prompt: list[int], output: list[int]) -> list[float]:
    found: list[float] = penalties_for(sampling, prompt).after(output).apply(LOGITS).tolist()
    return found


def test_repetition_divides_positive_logits_and_multiplies_negative_ones() -> None:
    """Dividing a negative logit would make the token likelier."""
    assert applied(Sampling(repetition_penalty=2.0), [0, 1, 3], []) == [2.0, -8.0, 1.0, 0.0, 2.0]


def test_repetition_counts_prompt_and_output_once_each() -> None:
    """A penalty raised to the number of occurrences is another penalty."""
    assert applied(Sampling(repetition_penalty=2.0), [0, 0, 0], [0, 4, 4]) == [2.0, -4.0, 1.0, 0.0, 1.0]


def test_presence_counts_the_output_only_and_once() -> None:
    """OpenAI's presence penalty leaves the prompt's words alone."""
    assert applied(Sampling(presence_penalty=0.5), [0, 1], [4, 4, 2]) == [4.0, -4.0, 0.5, 0.0, 1.5]


def test_repetition_comes_before_presence() -> None:
    """The other order divides what was subtracted."""
    both = Sampling(repetition_penalty=2.0, presence_penalty=0.5)
    assert applied(both, [], [0]) == [1.5, -4.0, 1.0, 0.0, 2.0]


def test_logits_of_the_caller_stay_as_they_are() -> None:
    """Log-probabilities are told of the raw logits, from the same rows."""
    before = LOGITS.copy()
    applied(Sampling(repetition_penalty=2.0, presence_penalty=1.0), [0, 1], [2, 3])
    np.testing.assert_array_equal(before, LOGITS)


def test_without_penalties_nothing_is_copied() -> None:
    """Greedy decoding must stay a bare argmax."""
    found = penalties_for(Sampling(0.7, 0.9, top_k=3), [1, 2])
    assert found is NO_PENALTIES
    assert found.after([3]) is NO_PENALTIES
    assert found.apply(LOGITS) is LOGITS


def test_what_is_heard_later_does_not_reach_back() -> None:
    """Rejected drafts must not stay behind in the penalties of the round after."""
    first = penalties_for(Sampling(presence_penalty=1.0), [0])
    first.after([2])
    assert first.apply(LOGITS).tolist() == LOGITS.tolist()


def row(*logits: float) -> Floats:
    return np.asarray(logits, dtype=np.float32)


@pytest.mark.parametrize("how", ["matching", "sampled"])
def test_a_verify_row_hears_of_the_drafted_tokens_before_it(how: str) -> None:
    """Three rows that all prefer token 0: once it was said in this very block, token 1 is better, then token 2."""
    logits = np.stack([row(3.0, 2.5, 2.2)] * 3)
    greedy = Sampling(0.0 if how == "matching" else 1e-3, presence_penalty=1.0)
    penalties = penalties_for(greedy, [])

    def verdict(*draft: int) -> Verdict:
        if how == "matching":
            return verify_matching(draft, logits, greedy, 0, penalties)
        return verify_sampled(draft, [np.eye(3)[token] for token in draft], logits, greedy, 0, penalties)

    assert verdict(0, 1) == Verdict((0, 1, 2), 2)
    assert verdict(0, 0) == Verdict((0, 1), 1)
    assert verdict(1, 0) == Verdict((0,), 0)


@pytest.mark.reference
@pytest.mark.parametrize("seed", range(20))
def test_distributions_are_those_of_hugging_faces_processors(seed: int) -> None:
    """Order, ties and edges, against the library that the names come from."""
    import torch
    from transformers.generation import logits_process as hf

    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, 200).astype(np.float32)
    prompt = rng.integers(0, 200, 12).tolist()
    sampling = Sampling(
        float(rng.uniform(0.3, 2)), float(rng.uniform(0.2, 1)), top_k=int(rng.integers(1, 150)),
        min_p=float(rng.uniform(0, 0.3)), repetition_penalty=float(rng.uniform(0.5, 2)),
    )  # fmt: skip
    processors = [
        hf.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty),
        hf.TemperatureLogitsWarper(sampling.temperature),
        hf.TopKLogitsWarper(sampling.top_k),
        hf.TopPLogitsWarper(sampling.top_p),
        hf.MinPLogitsWarper(sampling.min_p),
    ]
    scores = torch.from_numpy(logits.copy())[None]
    for process in processors:
        scores = process(torch.tensor([prompt]), scores)
    found = distribution(penalties_for(sampling, prompt).apply(logits), sampling)
    np.testing.assert_allclose(found, scores.softmax(-1)[0].numpy(), atol=1e-5)
