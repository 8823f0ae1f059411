"""The exact probabilities that test_lossless_sampling.py relies on, for runs small enough to reckon by hand."""

import numpy as np
import pytest
from tests.runtime.boxes import outcomes

from selfspec.runtime.sampling import Stream, draw, uniform

QUARTERS = np.asarray([0.25, 0.0, 0.75])


def test_a_uniform_that_is_used_twice_is_cut_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken for two independent ones, a verifier that shares a uniform would pass."""

    def run() -> tuple[int, bool]:
        u = uniform(0, 1, Stream.TARGET)
        return draw(QUARTERS, u), u * 0.5 < 0.2

    found = outcomes(run, {}, monkeypatch)
    assert [outcome for outcome, _ in found] == [(0, True), (2, True), (2, False)]
    assert [volume for _, volume in found] == pytest.approx([0.25, 0.15, 0.6])


def test_uniforms_of_other_streams_and_positions_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> tuple[bool, ...]:
        keys = ((1, Stream.ACCEPT), (1, Stream.DRAFT), (2, Stream.ACCEPT))
        return tuple(uniform(0, position, stream) >= 0.9 for position, stream in keys)

    found = dict(outcomes(run, {}, monkeypatch))
    assert len(found) == 8
    assert found[True, False, True] == pytest.approx(0.1 * 0.9 * 0.1)
    assert sum(found.values()) == pytest.approx(1)


def test_a_known_uniform_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that stops early leaves its later uniforms out: what it did does not depend on them."""

    def run() -> int:
        return draw(QUARTERS, uniform(0, 1, Stream.TARGET)) or draw(QUARTERS, uniform(0, 2, Stream.TARGET))

    assert outcomes(run, {1: 0.5}, monkeypatch) == [(2, 1.0)]
    assert outcomes(run, {1: 0.1}, monkeypatch) == [(0, 0.25), (2, 0.75)]


def test_the_functions_are_themselves_again_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes(lambda: uniform(0, 1, Stream.TARGET) < 0.5, {}, monkeypatch)
    assert isinstance(uniform(0, 1, Stream.TARGET), float)
