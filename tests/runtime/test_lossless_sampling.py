"""Sampled text has the full model's distribution, whatever drafts: the joint of three or four tokens, over a toy.

The expected probabilities come from the toy model's own logits, every continuation enumerated. Three steps lead there:
the real engine and the real drafters, over a table of those logits, give each continuation with exactly the probability
expected (boxes.py); their draws from real seeds pass a chi-square test; the model itself gives the same tokens as the
table, seed by seed. Verifiers and drafters that are biased on purpose must fail.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.runtime.boxes import outcomes
from tests.runtime.table import Table, TableConversation, TableStack

from selfspec.runtime import engine
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.drafters.base import Draft, Drafter, NoDrafter, Round
from selfspec.runtime.drafters.model_path import PathDrafter, Threshold
from selfspec.runtime.engine import decode
from selfspec.runtime.paths import FULL, exit_path
from selfspec.runtime.penalties import Penalties
from selfspec.runtime.sampling import Floats, Probabilities, Sampling, Stream, choose, distribution, draw, uniform
from selfspec.runtime.stack import Plan
from selfspec.runtime.verify import Verdict, verify_sampled

if TYPE_CHECKING:
    from tests.conftest import Toy

DRAWS = 10_000
BIASED_DRAWS = 6_000  # enough to see the bias
MODEL_DRAWS = 60  # of each setting: about a thousand
FIRST = (0.1, 0.5, 0.9)  # quantiles of the first token, which nothing drafts
EXACT, BIASED = 1e-9, 5e-3  # total variation
TOKENS = 3  # of which two are drafted for: a draft is one token, with the target's own behind it
MORE_TOKENS = 4  # a draft is two tokens, and may be accepted in part
WHOLE, NUCLEUS = Sampling(1.0), Sampling(1.0, 0.8)
PENALISED = Sampling(1.0, repetition_penalty=1.4, presence_penalty=0.8)
NARROW = Sampling(0.9, 0.95, top_k=7, min_p=0.1, repetition_penalty=0.8, presence_penalty=-0.5)
FEW, FEW_PENALISED = Sampling(1.5, top_k=3), Sampling(1.5, top_k=3, presence_penalty=2.0)  # few boxes
MakeDrafter = Callable[[Sampling], Drafter]


def chi_square_survival(value: float, degrees: int) -> float:
    """Wilson and Hilferty's approximation of the upper tail."""
    spread = 2 / (9 * degrees)
    z = ((value / degrees) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2))


def p_value(observed: NDArray[np.int64], expected: Probabilities) -> float:
    """Cells that expect fewer than five draws are pooled. A draw where none is possible has no excuse."""
    if observed[expected == 0].sum():
        return 0.0
    counts = expected * observed.sum()
    large = counts >= 5
    found = np.append(observed[large], observed[~large].sum())
    wanted = np.append(counts[large], counts[~large].sum())
    if wanted[-1] < 5:
        found, wanted = np.append(found[:-2], found[-2:].sum()), np.append(wanted[:-2], wanted[-2:].sum())
    return chi_square_survival(float(((found - wanted) ** 2 / wanted).sum()), len(wanted) - 1)


def test_the_survival_function_agrees_with_printed_tables() -> None:
    """A wrong tail would let every biased verifier pass."""
    for value, degrees, expected in (
        (124.342, 100, 0.05),
        (76.154, 50, 0.01),
        (18.307, 10, 0.05),
        (149.449, 100, 1e-3),
    ):
        assert chi_square_survival(value, degrees) == pytest.approx(expected, rel=0.02)


def table_tokens(table: Table, drafter: Drafter, sampling: Sampling) -> tuple[int, ...]:
    conversation = cast(Conversation, TableConversation(table))
    decoding = decode(conversation, table.logits[()], drafter, sampling, table.length, frozenset())
    return tuple(decoding.tokens())


def observe(table: Table, make: MakeDrafter, sampling: Sampling, draws: int = DRAWS) -> NDArray[np.int64]:
    cells = np.zeros((table.vocab,) * table.length, dtype=np.int64)
    for seed in range(draws):
        seeded = replace(sampling, seed=seed)
        cells[table_tokens(table, make(seeded), seeded)] += 1
    return cells.reshape(-1)


def bias(table: Table, make: MakeDrafter, sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> float:
    """Total variation between what decoding gives after a first token and what the model says; the largest found."""
    joint = table.joint(sampling).reshape(table.vocab, -1)
    found = []
    for quantile in FIRST:
        known = {len(table.prompt): quantile}
        cells = np.zeros((table.vocab,) * table.length)
        for tokens, volume in outcomes(lambda: table_tokens(table, make(sampling), sampling), known, monkeypatch):
            cells[tokens] += volume
        cells = cells.reshape(joint.shape)
        (first,) = np.flatnonzero(cells.sum(1))
        found.append(np.abs(cells[first] - joint[first] / joint[first].sum()).sum() / 2)
    return float(max(found))


@pytest.fixture(scope="module")
def table(tiny: Toy) -> Table:
    return Table(tiny, TOKENS)


@pytest.fixture(scope="module")
def longer_table(tiny: Toy) -> Table:
    return Table(tiny, MORE_TOKENS)


class Unsure(Threshold):
    """Keeps a token only where the exit's best one is likely: known before anything is drawn."""

    def keep(self, confidences: Sequence[float]) -> bool:
        return confidences[-1] >= 0.3


HONEST: dict[str, MakeDrafter] = {
    "plain": lambda s: NoDrafter(),
    "deterministic": lambda s: PathDrafter(exit_path(1), 2, rule=Threshold(0.0)),
    "deterministic, over the hot vocabulary, low confidence stops": lambda s: PathDrafter(
        exit_path(1), 2, rule=Threshold(0.4)
    ),
    "sampled": lambda s: PathDrafter(exit_path(1, FULL), 2, rule=Threshold(0.0), sampling=s),
    "sampled from the hot vocabulary, low confidence stops": lambda s: PathDrafter(
        exit_path(1), 2, rule=Threshold(0.4), sampling=s
    ),
    "sampled, dropped where the exit is unsure whatever was drawn": lambda s: PathDrafter(
        exit_path(1, FULL), 2, rule=Unsure(), sampling=s
    ),
    "deterministic, dropped where the exit is unsure": lambda s: PathDrafter(exit_path(1, FULL), 2, rule=Unsure()),
    "sampled at another temperature": lambda s: PathDrafter(
        exit_path(1, FULL), 2, rule=Threshold(0.0), sampling=Sampling(2.5, 0.9, s.seed)
    ),
}
SETTINGS = pytest.mark.parametrize(
    ("name", "sampling"),
    [
        *((n, WHOLE) for n in HONEST),
        *((n, s) for n in ("plain", "deterministic", "sampled") for s in (NUCLEUS, PENALISED, NARROW)),
    ],
    ids=lambda v: v if isinstance(v, str) else f"top-p {v.top_p} penalty {v.repetition_penalty}",
)


def test_the_toy_is_a_fair_judge(table: Table) -> None:
    """A distribution that is nearly one token, or an exit equal to the model, would let biased verifiers pass."""
    full, exit_ = table.logits[3,], table.exit_logits[3,]
    p, q = distribution(full, WHOLE), distribution(exit_, WHOLE)
    assert p.max() < 0.7
    assert 0.15 < np.abs(p - q).sum() / 2 < 0.85
    assert (table.joint(WHOLE) * DRAWS >= 5).sum() > 100


@SETTINGS
def test_every_draft_leaves_the_distribution_as_it_is(
    table: Table, name: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any bias of acceptance, residual, bonus token or draw, however small."""
    assert bias(table, HONEST[name], sampling, monkeypatch) < EXACT


@pytest.mark.parametrize("name", ["deterministic", "sampled"])
@pytest.mark.parametrize("sampling", [FEW, FEW_PENALISED], ids=["plain logits", "penalties"])
def test_a_draft_of_two_tokens_leaves_it_as_it_is_too(
    longer_table: Table, name: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second drafted token is judged only where the first was accepted, and by a row that has seen the first."""
    assert bias(longer_table, HONEST[name], sampling, monkeypatch) < EXACT


@pytest.mark.parametrize("name", ["deterministic", "sampled"])
def test_seeds_draw_from_that_distribution(table: Table, name: str) -> None:
    """Uniforms of a seed that hang together, from stream to stream or from position to position."""
    assert p_value(observe(table, HONEST[name], WHOLE), table.joint(WHOLE)) > 1e-3


@SETTINGS
def test_the_model_itself_gives_what_the_table_gives(tiny: Toy, table: Table, name: str, sampling: Sampling) -> None:
    """The stand-in above proves nothing if the real stack, KV cache and prefix reuse do something else."""
    accepted = drafted = 0
    for seed in range(MODEL_DRAWS):
        seeded = replace(sampling, seed=seed)
        run = tiny.run(HONEST[name](seeded), sampling=seeded, count=TOKENS)
        assert run.tokens == table_tokens(table, HONEST[name](seeded), seeded)
        accepted, drafted = accepted + run.accepted, drafted + run.drafted
    assert name == "plain" or 0 < accepted < drafted


# Biased on purpose.


def accept_always(
    draft: Sequence[int],
    q: Sequence[Probabilities],
    logits: Floats,
    sampling: Sampling,
    position: int,
    penalties: Penalties,
) -> Verdict:
    return Verdict((*draft, choose(logits[len(draft)], sampling, position + len(draft))), len(draft))


def residual_is_the_target(
    draft: Sequence[int],
    q: Sequence[Probabilities],
    logits: Floats,
    sampling: Sampling,
    position: int,
    penalties: Penalties,
) -> Verdict:
    """Draws from p instead of max(0, p - q) after a rejection: the commonest mistake."""
    verdict = verify_sampled(draft, q, logits, sampling, position, penalties)
    if verdict.num_accepted == len(draft):
        return verdict
    at = verdict.num_accepted
    redrawn = draw(distribution(logits[at], sampling), uniform(sampling.seed, position + at, Stream.RESIDUAL))
    return Verdict((*verdict.tokens[:-1], redrawn), at)


def shared_uniform(
    draft: Sequence[int],
    q: Sequence[Probabilities],
    logits: Floats,
    sampling: Sampling,
    position: int,
    penalties: Penalties,
) -> Verdict:
    """Uses the draft's own uniform for acceptance too."""
    tokens: list[int] = []
    for i, (token, proposal) in enumerate(zip(draft, q, strict=True)):
        p = distribution(logits[i], sampling)
        if uniform(sampling.seed, position + i, Stream.DRAFT) * proposal[token] >= p[token]:
            residual = np.maximum(p - proposal, 0.0)
            return Verdict((*tokens, draw(residual, uniform(sampling.seed, position + i, Stream.RESIDUAL))), i)
        tokens.append(token)
    return Verdict((*tokens, choose(logits[len(draft)], sampling, position + len(draft))), len(draft))


class DropsUnsure(PathDrafter):
    """Takes a sampled token back where its own probability is low: what is left is not drawn from q any more."""

    def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
        draft = super().propose(conversation, max_tokens)
        if draft.prefix is None:
            return draft
        assert draft.q is not None
        kept = list(itertools.takewhile(lambda i: draft.q[i][draft.tokens[i]] > 0.15, range(len(draft.tokens))))  # type: ignore[index]
        n = len(kept)
        prefix = replace(draft.prefix, hidden=draft.prefix.hidden[:n])
        return Draft(draft.tokens[:n], draft.q[:n], prefix)


class ClaimsIgnorance:
    """Samples from the exit's distribution but states the uniform one. (Stating certainty would be exact: whatever
    chose it, a fixed token may be judged as one.)"""

    def __init__(self, inner: PathDrafter) -> None:
        self._inner = inner

    def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
        draft = self._inner.propose(conversation, max_tokens)
        q = (np.full(conversation.config.vocab_size, 1 / conversation.config.vocab_size),) * len(draft.tokens)
        return Draft(draft.tokens, q, draft.prefix)

    def observe(self, result: Round) -> None:
        pass


SAMPLED = HONEST["sampled"]


@pytest.mark.parametrize(
    "verifier", [accept_always, residual_is_the_target, shared_uniform], ids=lambda f: str(f.__name__)
)
def test_a_biased_verifier_fails_the_same_test(
    table: Table, verifier: Callable[..., Verdict], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test that passes whatever it is given."""
    monkeypatch.setattr(engine, "verify_sampled", verifier)
    assert bias(table, SAMPLED, WHOLE, monkeypatch) > BIASED


def test_seeds_show_a_biased_verifier_too(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chi-square test that passes whatever it is given."""
    monkeypatch.setattr(engine, "verify_sampled", shared_uniform)
    assert p_value(observe(table, SAMPLED, WHOLE, BIASED_DRAWS), table.joint(WHOLE)) < 1e-6


def ignores_the_block(
    draft: Sequence[int],
    q: Sequence[Probabilities],
    logits: Floats,
    sampling: Sampling,
    position: int,
    penalties: Penalties,
) -> Verdict:
    """Penalises every row for what stood before the block, and not for the drafted tokens before it in the block."""
    return verify_sampled(draft, q, np.stack([penalties.apply(row) for row in logits]), sampling, position)


def test_rows_that_do_not_see_the_block_before_them_fail_the_same_test(
    longer_table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row of the third token must be penalised for the second, drafted in the same block."""
    monkeypatch.setattr(engine, "verify_sampled", ignores_the_block)
    assert bias(longer_table, SAMPLED, FEW_PENALISED, monkeypatch) > BIASED


def test_a_drafter_that_drops_its_own_unlikely_tokens_fails_the_same_test(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The confidence rule applied to a sampled token: dropping it because of its probability biases what is kept."""

    def make(sampling: Sampling) -> Drafter:
        return DropsUnsure(exit_path(1, FULL), 2, rule=Threshold(0.0), sampling=sampling)

    assert bias(table, make, WHOLE, monkeypatch) > BIASED


def test_a_drafter_that_misstates_its_distribution_fails_the_same_test(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """q must be the very distribution that was drawn from."""

    def make(sampling: Sampling) -> Drafter:
        return ClaimsIgnorance(PathDrafter(exit_path(1, FULL), 2, rule=Threshold(0.0), sampling=sampling))

    assert bias(table, make, WHOLE, monkeypatch) > BIASED


def test_a_deterministic_draft_accepted_by_a_coin_without_residual_fails_the_same_test(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accepting an argmax draft with probability p but redrawing from p after a rejection favours the draft."""

    def coin(draft: Sequence[int], logits: Floats, sampling: Sampling, position: int, penalties: Penalties) -> Verdict:
        tokens: list[int] = []
        for i, token in enumerate(draft):
            p = distribution(logits[i], sampling)
            if uniform(sampling.seed, position + i, Stream.ACCEPT) >= p[token]:
                return Verdict((*tokens, choose(logits[i], sampling, position + i)), i)
            tokens.append(token)
        return Verdict((*tokens, choose(logits[len(draft)], sampling, position + len(draft))), len(draft))

    monkeypatch.setattr(engine, "verify_matching", coin)
    assert bias(table, HONEST["deterministic"], WHOLE, monkeypatch) > BIASED


def test_a_stand_in_that_is_asked_for_an_unknown_context_complains(table: Table) -> None:
    """The table must not hide a wrong position behind a default."""
    stack: Any = TableStack(table)
    hidden = stack.run(Plan.layers(0, table.layers), stack.embed(np.asarray([1])), len(table.prompt) + 1)
    with pytest.raises(KeyError):
        stack.logits(hidden)
