"""Accept and reject, by distributions written by hand: never, always, sometimes; and what the residual is."""

from __future__ import annotations

import numpy as np
import pytest

from selfspec.runtime.sampling import Floats, Probabilities, Sampling, Stream, uniform
from selfspec.runtime.verify import Verdict, verify_matching, verify_sampled

GREEDY = Sampling()


def rows(*probs: list[float]) -> Floats:
    """Logits whose softmax is the given rows; a probability of zero is one of e^-10000."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.maximum(np.log(np.asarray(probs)), -1e4), dtype=np.float32)


def one_hot(index: int, size: int = 4) -> list[float]:
    return [float(i == index) for i in range(size)]


def many(count: int = 4000) -> list[Sampling]:
    return [Sampling(1.0, seed=s) for s in range(count)]


def shares(tokens: list[int], size: int) -> Probabilities:
    return np.bincount(tokens, minlength=size) / len(tokens)


def test_greedy_keeps_the_matching_prefix_and_adds_the_targets_own_token() -> None:
    """Rows compared with the wrong draft position: logits row i predicts draft i."""
    logits = rows(one_hot(2), one_hot(3), one_hot(1))
    assert verify_matching([2, 3], logits, GREEDY, 10) == Verdict((2, 3, 1), 2)
    assert verify_matching([2, 1], logits, GREEDY, 10) == Verdict((2, 3), 1)
    assert verify_matching([0, 3], logits, GREEDY, 10) == Verdict((2,), 0)
    assert verify_matching([], logits[:1], GREEDY, 10) == Verdict((2,), 0)


def test_a_match_after_a_miss_does_not_count() -> None:
    """Counting matches instead of the matching prefix: row 1 was computed behind a wrong token."""
    logits = rows(one_hot(2), one_hot(3), one_hot(1))
    assert verify_matching([0, 3], logits, GREEDY, 0).tokens == (2,)


def test_a_warm_draft_is_accepted_iff_it_is_what_would_have_been_drawn() -> None:
    """Position keys off by one: the draw for position p + i must be the plain engine's at p + i."""
    logits = rows([0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.25] * 4)
    for sampling in many(200):
        own = tuple(verify_matching([], logits[i : i + 1], sampling, 5 + i).tokens[0] for i in range(3))
        assert verify_matching(own[:2], logits, sampling, 5) == Verdict(own, 2)
        wrong = ((own[0] + 1) % 4, own[1])
        assert verify_matching(wrong, logits, sampling, 5) == Verdict(own[:1], 0)
        half = (own[0], (own[1] + 1) % 4)
        assert verify_matching(half, logits, sampling, 5) == Verdict(own[:2], 1)


def test_a_sampled_draft_that_the_target_can_never_say_is_never_accepted() -> None:
    """Accepting by q alone. The residual is then p itself where q is elsewhere."""
    p, q = [0.5, 0.5, 0.0, 0.0], np.asarray([0.0, 0.0, 1.0, 0.0])
    verdicts = [verify_sampled([2], [q], rows(p, one_hot(3)), s, 8) for s in many()]
    assert all(v.num_accepted == 0 and len(v.tokens) == 1 for v in verdicts)
    np.testing.assert_allclose(shares([v.tokens[0] for v in verdicts], 4), p, atol=0.04)


def test_a_sampled_draft_from_the_targets_own_distribution_is_always_accepted() -> None:
    """An identity draft must lose nothing: q = p accepts with probability one."""
    p = [0.1, 0.2, 0.3, 0.4]
    logits = rows(p, one_hot(3))
    exact = np.exp(logits[0].astype(np.float64))
    exact /= exact.sum()
    for sampling in many(500):
        for drafted in range(4):
            assert verify_sampled([drafted], [exact], logits, sampling, 8) == Verdict((drafted, 3), 1)


def test_a_draft_less_likely_under_q_than_under_p_is_always_accepted() -> None:
    """min(1, p / q): a ratio above one is one, not a reason to draw."""
    q = np.asarray([0.7, 0.1, 0.1, 0.1])
    logits = rows([0.4, 0.3, 0.2, 0.1], one_hot(0))
    assert all(verify_sampled([1], [q], logits, s, 3).num_accepted == 1 for s in many(500))


def test_a_draft_twice_as_likely_under_q_is_accepted_half_the_time() -> None:
    """The ratio upside down. After a rejection only tokens that p favours may come: here 2 and 3, one to three."""
    p, q = [0.3, 0.1, 0.3, 0.3], np.asarray([0.6, 0.2, 0.2, 0.0])
    verdicts = [verify_sampled([0], [q], rows(p, one_hot(1)), s, 3) for s in many()]
    accepted = [v for v in verdicts if v.num_accepted]
    assert abs(len(accepted) / len(verdicts) - 0.5) < 0.04
    assert {v.tokens for v in accepted} == {(0, 1)}
    rejected = [v.tokens[0] for v in verdicts if not v.num_accepted]
    np.testing.assert_allclose(shares(rejected, 4), [0, 0, 0.25, 0.75], atol=0.04)


def test_a_rejection_ends_the_round() -> None:
    """Tokens behind a rejected one were drafted behind a token that is not there."""
    q = np.asarray([0.0, 0.0, 0.0, 1.0])
    logits = rows(one_hot(1), one_hot(3), one_hot(3))
    assert verify_sampled([3, 3], [q, q], logits, Sampling(1.0), 2) == Verdict((1,), 0)


def test_acceptance_residual_and_bonus_use_streams_of_their_own() -> None:
    """One uniform for two decisions correlates them: the residual would only ever see u above the acceptance bound."""
    p, q = [0.5, 0.25, 0.25, 0.0], np.asarray([1.0, 0.0, 0.0, 0.0])
    logits = rows(p, [0.5, 0.5, 0.0, 0.0])
    for sampling in many(300):
        verdict = verify_sampled([0], [q], logits, sampling, 6)
        if uniform(sampling.seed, 6, Stream.ACCEPT) < 0.5:
            assert verdict == Verdict((0, int(uniform(sampling.seed, 7, Stream.TARGET) >= 0.5)), 1)
        else:
            assert verdict == Verdict((1 + int(uniform(sampling.seed, 6, Stream.RESIDUAL) >= 0.5),), 0)


def test_a_residual_without_mass_falls_back_to_the_target() -> None:
    """p and q equal up to rounding and an unlucky u: dividing by a zero residual gives nan, and nan any token."""
    p = [0.6, 0.4, 0.0, 0.0]
    logits = rows(p, one_hot(0))
    exact = np.exp(logits[0].astype(np.float64))
    exact /= exact.sum()
    q = exact * 1.01  # p - q is negative everywhere, and u q < p fails for u above 1 / 1.01
    for sampling in many(3000):
        verdict = verify_sampled([0], [q], logits, sampling, 1)
        assert verdict.tokens[0] in (0, 1)
    rejected = [s for s in many(3000) if uniform(s.seed, 1, Stream.ACCEPT) > 0.9902]
    assert [verify_sampled([0], [q], logits, s, 1).num_accepted for s in rejected] == [0] * len(rejected)
    assert rejected


def test_top_p_applies_to_the_target_of_a_sampled_draft() -> None:
    """A token outside the target's nucleus accepted because raw probabilities were compared."""
    sampling = [Sampling(1.0, 0.6, s) for s in range(500)]
    q = np.asarray([0.25] * 4)
    verdicts = [verify_sampled([3], [q], rows([0.5, 0.3, 0.1, 0.1], one_hot(0)), s, 4) for s in sampling]
    assert {v.num_accepted for v in verdicts} == {0}
    assert {v.tokens[0] for v in verdicts} == {0, 1}


def test_one_distribution_is_needed_for_every_drafted_token() -> None:
    """A draft with fewer distributions than tokens would leave its last tokens unjudged."""
    with pytest.raises(ValueError, match="zip"):
        verify_sampled([1, 1], [np.asarray([0.0, 1.0])], rows([0.0, 1.0], [0.0, 1.0], [1.0, 0.0]), Sampling(1.0), 0)


def test_a_greedy_verdict_holds_plain_integers() -> None:
    """NumPy integers would leak into JSON output and into sets of token ids."""
    logits = rows(one_hot(2), one_hot(3))
    draft = np.asarray([2])
    for verdict in (
        verify_matching(draft.tolist(), logits, GREEDY, 0),
        verify_sampled(list(draft), [np.asarray(one_hot(2))], logits, Sampling(1.0), 0),
    ):
        assert [type(t) for t in verdict.tokens] == [int, int]
