"""Log-probabilities by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from selfspec.errors import UsageError
from selfspec.runtime.logprobs import TopLogprob, check_logprobs, token_logprobs


def test_a_tokens_logprob_is_the_log_softmax_and_the_likeliest_come_first() -> None:
    """Logarithms to another base, probabilities, or another token's."""
    logits = np.log(np.asarray([0.1, 0.5, 0.15, 0.25], dtype=np.float32)) + 7
    found = token_logprobs(logits, 2, 3)
    assert found.logprob == pytest.approx(math.log(0.15), rel=1e-6)
    assert [t.id for t in found.top] == [1, 3, 2]
    assert [t.logprob for t in found.top] == pytest.approx([math.log(p) for p in (0.5, 0.25, 0.15)], rel=1e-6)
    assert found.top[2] == TopLogprob(2, found.logprob)


def test_none_of_the_likeliest_may_be_wanted_and_more_than_there_are() -> None:
    logits = np.asarray([1.0, 1.0], dtype=np.float32)
    assert token_logprobs(logits, 1, 0).top == ()
    assert [t.id for t in token_logprobs(logits, 1, 5).top] == [0, 1]


def test_large_logits_do_not_overflow_and_types_are_pythons() -> None:
    """exp(1000) is infinite, and NumPy's floats do not go into JSON."""
    found = token_logprobs(np.asarray([1000.0, 0.0], dtype=np.float32), 1, 1)
    assert found.logprob == -1000.0
    assert type(found.logprob) is float
    assert [type(part) for part in found.top[0]] == [int, float]


@pytest.mark.parametrize("count", [-1, 21, True, 2.0, "3"])
def test_a_count_that_cannot_be_told_is_refused(count: Any) -> None:
    with pytest.raises(UsageError, match=r"`logprobs` .*between 0 and 20"):
        check_logprobs(count)


def test_no_count_and_every_count_up_to_twenty_are_accepted() -> None:
    for count in (None, *range(21)):
        check_logprobs(count)
