"""Whatever drafts, the text is the full model's own: the engine's rounds on toy models, with padded (exact) passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from selfspec.errors import UsageError
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.costs import MeasuredPath, Profile
from selfspec.runtime.drafters.auto import AutoDrafter
from selfspec.runtime.drafters.base import Draft, Drafter, NoDrafter, Round
from selfspec.runtime.drafters.model_path import PathDrafter, Threshold
from selfspec.runtime.drafters.path_arm import promising_arm
from selfspec.runtime.drafters.prompt_lookup import LookupArm, PromptLookup
from selfspec.runtime.engine import decode
from selfspec.runtime.paths import FULL, exit_path
from selfspec.runtime.rates import CostModel
from selfspec.runtime.sampling import Sampling
from selfspec.runtime.stack import Plan

if TYPE_CHECKING:
    from tests.conftest import Toy

WARM = Sampling(temperature=0.8, top_p=0.9, seed=11)
SETTINGS = {
    "greedy": Sampling(),
    "warm": WARM,
    "greedy, penalised": Sampling(repetition_penalty=1.3, presence_penalty=0.5),
    "top-k": Sampling(0.9, seed=3, top_k=12),
    "min-p, penalised": Sampling(0.9, 0.97, seed=4, min_p=0.05, repetition_penalty=1.2, presence_penalty=0.4),
    "all at once": Sampling(1.1, 0.9, 5, 40, 0.02, 0.9, -0.6),
}


class SkipMiddle:
    """An interior draft: greedy without the block of layers 2 and 3. Its KV rows are wrong, so ``prefix`` is None."""

    def __init__(self, num_tokens: int = 3) -> None:
        self._num_tokens = num_tokens
        self._plan = Plan((*range(4), *range(8, 12)))

    def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
        stack, token, tokens = conversation.stack, conversation.tokens[-1], list[int]()
        while len(tokens) < min(max_tokens, self._num_tokens):
            row = conversation.kv.length + len(tokens)
            hidden = stack.run(self._plan, stack.embed(np.asarray([token])), row)
            token = int(stack.logits(hidden)[0].argmax())
            tokens.append(token)
        return Draft(tuple(tokens))

    def observe(self, result: Round) -> None:
        pass


class Oracle:
    """Drafts from a known continuation, each token moved by ``shift``: 0 is always right, anything else always wrong.

    The text must not depend on it, so what it accepts says whether verification compares the right positions.
    """

    def __init__(
        self, prompt_length: int, tokens: tuple[int, ...], shift: int, vocab: int, num_tokens: int = 4
    ) -> None:
        self._begin = prompt_length
        self._tokens = [(t + shift) % vocab for t in tokens]
        self._num_tokens = num_tokens
        self.seen: list[Round] = []

    def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
        at = len(conversation.tokens) - self._begin
        return Draft(tuple(self._tokens[at : at + min(max_tokens, self._num_tokens)]))

    def observe(self, result: Round) -> None:
        self.seen.append(result)


class AutoOnAPaperMachine:
    """The controller on a machine where verification is almost free and exits are cheap and good, so that every arm
    gets used. Rounds are said to take what the profile says: what it does must not depend on the real clock."""

    def __init__(self) -> None:
        steps = {m: 1.0 + 0.01 * m for m in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)}
        hits = tuple(i % 5 != 0 for i in range(100))
        path = exit_path(4)
        self._profile = Profile(steps, {path.name: MeasuredPath(0.3, 0.3, (0.95,) * 100, hits)}, None)
        costs = CostModel(self._profile)
        exits = promising_arm("early-exit", [path], self._profile, costs)
        self._auto = AutoDrafter([LookupArm("prompt-lookup", costs), *exits], costs)

    def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
        return self._auto.propose(conversation, max_tokens)

    def observe(self, result: Round) -> None:
        self._auto.observe(replace(result, seconds=self._profile.verify_cost(result.num_drafted + 1)))


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "early exit 2": lambda: PathDrafter(exit_path(2), 4, rule=Threshold(0.0)),
    "early exit 4": lambda: PathDrafter(exit_path(4), 3),
    "early exit 5": lambda: PathDrafter(exit_path(5), 7, rule=Threshold(0.1)),
    "early exit with the full head": lambda: PathDrafter(exit_path(4, FULL), 5, rule=Threshold(0.0)),
    "prompt lookup": lambda: PromptLookup(),
    "auto": lambda: AutoOnAPaperMachine(),
    "middle block skipped": lambda: SkipMiddle(),
}


@pytest.mark.parametrize("sampling", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", DRAFTERS)
def test_text_is_the_same_whatever_drafts(toy: Toy, name: str, sampling: Sampling) -> None:
    """A stale KV row, a wrong position or a mixed-up logits row after a rejection changes the text."""
    plain = toy.run(NoDrafter(), sampling=sampling, count=90)
    drafted = toy.run(DRAFTERS[name](), sampling=sampling, count=90)
    assert drafted.tokens == plain.tokens
    assert drafted.conversation.tokens == plain.conversation.tokens
    assert drafted.conversation.kv.length == plain.conversation.kv.length == len(plain.conversation.tokens) - 1


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_draft_is_right_at_times_and_wrong_at_others(toy: Toy, name: str) -> None:
    """Or the test above would test half of it. A seed under which lookup finds nothing to copy is no fault, so one of
    these texts repeats itself on any machine: logits of tokens that were said are doubled."""
    settings = (Sampling(), Sampling(repetition_penalty=0.5))
    runs = [toy.run(DRAFTERS[name](), sampling=sampling, count=90) for sampling in settings]
    assert 0 < sum(r.accepted for r in runs) < sum(r.drafted for r in runs)


@pytest.mark.parametrize("name", DRAFTERS)
def test_log_probabilities_are_the_same_bits_whatever_drafts(toy: Toy, name: str) -> None:
    """Rows of another position, or of rejected tokens; and penalties must not show in them."""
    for sampling in (WARM, SETTINGS["greedy, penalised"]):
        plain = toy.run(NoDrafter(), sampling=sampling, count=50, num_logprobs=3)
        drafted = toy.run(DRAFTERS[name](), sampling=sampling, count=50, num_logprobs=3)
        expected = plain.logprobs
        assert drafted.logprobs == expected
        assert len(expected) == 50
        assert all(len(r.logprobs) == len(r.tokens) for r in drafted.rounds)


def test_penalties_change_the_text_and_repeat_less(fp32: Toy) -> None:
    """Options that reach nothing."""
    plain = fp32.run(NoDrafter(), count=90).tokens
    for sampling in (Sampling(repetition_penalty=3.0), Sampling(presence_penalty=2.0)):
        penalised = fp32.run(NoDrafter(), sampling=sampling, count=90).tokens
        assert len(set(penalised)) > len(set(plain)), sampling


def test_text_varies_enough_to_notice_an_error(toy: Toy) -> None:
    """A toy that repeats one token would pass every test above whatever the engine did."""
    assert len(set(toy.run(NoDrafter(), count=90).tokens)) > 20
    assert len(set(toy.run(NoDrafter(), sampling=WARM, count=90).tokens)) > 20


@pytest.mark.parametrize("seed", range(5))
def test_one_seed_gives_the_same_text_with_every_deterministic_draft(fp32: Toy, seed: int) -> None:
    """Draws keyed by round instead of by position would make the text depend on the draft."""
    sampling = Sampling(temperature=0.8, seed=seed)
    plain = fp32.run(NoDrafter(), sampling=sampling, count=40)
    for name, make in DRAFTERS.items():
        assert fp32.run(make(), sampling=sampling, count=40).tokens == plain.tokens, name


def test_other_seeds_give_other_texts(fp32: Toy) -> None:
    """A seed that is ignored."""
    texts = {fp32.run(NoDrafter(), sampling=Sampling(0.8, seed=s), count=20).tokens for s in range(5)}
    assert len(texts) == 5


def test_identity_draft_is_accepted_in_full(toy: Toy) -> None:
    """A draft that is the model itself can only be rejected by a bug: rows shifted by one, or kernels not row-alike."""
    plain = toy.run(NoDrafter(), count=60)
    identity = PathDrafter(exit_path(toy.spec.layers, FULL), 5, rule=Threshold(0.0))
    drafted = toy.run(identity, count=60)
    assert drafted.tokens == plain.tokens
    assert drafted.accepted == drafted.drafted == 59 - len(drafted.rounds)


def test_forced_bad_draft_is_rejected_in_full_and_changes_nothing(toy: Toy) -> None:
    """Verification that compares with the wrong row accepts some of it; KV rows left behind would change the text."""
    plain = toy.run(NoDrafter(), count=60)
    oracle = Oracle(len(toy.prompt), plain.tokens, 1, toy.spec.vocab)
    drafted = toy.run(oracle, count=60)
    assert drafted.tokens == plain.tokens
    assert drafted.accepted == 0
    assert len(drafted.rounds) == 59
    assert drafted.drafted == 4 * 55 + 3 + 2 + 1  # the last rounds may not draft beyond what is wanted


def test_a_right_draft_commits_one_token_more_than_it_has(toy: Toy) -> None:
    """Forgetting the target's own token after a fully accepted draft costs speed, not correctness: nobody notices."""
    plain = toy.run(NoDrafter(), count=61)
    oracle = Oracle(len(toy.prompt), plain.tokens, 0, toy.spec.vocab)
    drafted = toy.run(oracle, count=61)
    assert drafted.tokens == plain.tokens
    assert [len(r.tokens) for r in drafted.rounds] == [5] * 12
    assert [r.num_accepted for r in drafted.rounds] == [4] * 12
    assert oracle.seen == list(drafted.rounds)


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "warm"])
def test_eos_inside_an_accepted_block_ends_the_text_there(fp32: Toy, sampling: Sampling) -> None:
    """Tokens after the end of sequence that were accepted with it must be neither given out nor cached."""
    plain = fp32.run(NoDrafter(), sampling=sampling, count=60)
    at = next(i for i in range(12, 60) if plain.tokens.index(plain.tokens[i]) == i and (i - 1) % 5 not in (0, 4))
    eos = frozenset({plain.tokens[at]})
    oracle = Oracle(len(fp32.prompt), plain.tokens, 0, fp32.spec.vocab)
    drafted = fp32.run(oracle, sampling=sampling, count=60, eos=eos)
    last = drafted.rounds[-1]
    assert drafted.tokens == plain.tokens[: at + 1]
    assert last.num_drafted == 4
    assert last.num_accepted == len(last.tokens) < 5
    assert drafted.conversation.tokens == fp32.prompt + list(drafted.tokens)
    assert drafted.conversation.kv.length == len(drafted.conversation.tokens) - 1


def test_eos_as_the_targets_own_token_ends_the_text_too(fp32: Toy) -> None:
    """Looking for the end of sequence among the drafted tokens only."""
    plain = fp32.run(NoDrafter(), count=30)
    for at in range(30):
        first = plain.tokens.index(plain.tokens[at])
        assert fp32.run(NoDrafter(), count=30, eos=frozenset({plain.tokens[at]})).tokens == plain.tokens[: first + 1]


def test_a_finished_conversation_goes_on_as_if_never_drafted(fp32: Toy) -> None:
    """KV rows of tokens after the end of sequence: hidden until the conversation goes on over them."""
    plain = fp32.run(NoDrafter(), count=60)
    eos = frozenset({plain.tokens[32]})
    texts = []
    for drafter in (
        NoDrafter(),
        Oracle(len(fp32.prompt), plain.tokens, 0, fp32.spec.vocab),
        PathDrafter(exit_path(4), 4),
    ):
        conversation = fp32.run(drafter, count=60, eos=eos).conversation
        pending = conversation.tokens.pop()
        logits = conversation.prefill([pending, 7, 8, 9])
        texts.append(list(decode(conversation, logits, NoDrafter(), Sampling(), 20, frozenset()).tokens()))
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 6, 7, 11, 13])
def test_no_more_tokens_than_asked_for(fp32: Toy, count: int) -> None:
    """A block accepted across the limit: one token too many, or rows committed for tokens that were cut."""
    plain = fp32.run(NoDrafter(), count=20)
    oracle = Oracle(len(fp32.prompt), plain.tokens, 0, fp32.spec.vocab)
    drafted = fp32.run(oracle, count=count)
    assert drafted.tokens == plain.tokens[:count]
    assert drafted.conversation.tokens == fp32.prompt + list(plain.tokens[:count])
    assert drafted.conversation.kv.length == len(fp32.prompt) + max(0, count - 1)
    assert all(r.num_drafted < len(plain.tokens) for r in drafted.rounds)
    assert len(drafted.tokens) == count


@pytest.mark.parametrize("name", [None, *DRAFTERS])
def test_text_ends_where_the_context_does(toy: Toy, name: str | None) -> None:
    """A draft that reserves a row beyond the context, or a last token that is lost or invented."""
    prompt = [5 + i % 90 for i in range(toy.spec.context - 9)]
    drafter = NoDrafter() if name is None else DRAFTERS[name]()
    done = toy.run(drafter, prompt=prompt, count=50)
    assert done.tokens == toy.run(NoDrafter(), prompt=prompt, count=50).tokens
    assert len(done.tokens) == 9
    assert len(done.conversation.tokens) == toy.spec.context
    assert done.conversation.kv.length == toy.spec.context - 1


def test_a_prompt_that_fills_the_context_gives_nothing(fp32: Toy) -> None:
    """A token at a position that the model does not have."""
    assert fp32.run(NoDrafter(), prompt=[7] * fp32.spec.context, count=5).tokens == ()


def test_two_interleaved_conversations_equal_separate_ones(toy: Toy) -> None:
    """Any state kept in sessions, in the model or in a module: scratch, bindings, positions, KV."""
    prompts = (toy.prompt, [*toy.prompt[5:], 17, 18])
    makers: tuple[Callable[[], Drafter], ...] = (
        lambda: PathDrafter(exit_path(4), 4, rule=Threshold(0.0)),
        lambda: PromptLookup(),
    )
    alone = [toy.run(m(), prompt=p, sampling=WARM, count=40).tokens for m, p in zip(makers, prompts, strict=True)]
    runs = []
    for make, prompt in zip(makers, prompts, strict=True):
        conversation = toy.conversation()
        runs.append(decode(conversation, conversation.prefill(prompt), make(), WARM, 40, frozenset()).tokens())
    together: list[list[int]] = [[], []]
    open_runs = [0, 1]
    while open_runs:
        for i in list(open_runs):
            result = next(runs[i], None)
            if result is None:
                open_runs.remove(i)
            else:
                together[i].append(result)
    assert [tuple(t) for t in together] == alone


def test_an_abandoned_generation_leaves_the_model_usable(toy: Toy) -> None:
    """Sessions or bindings left in the middle of a round."""
    before = toy.run(NoDrafter(), count=30).tokens
    conversation = toy.conversation()
    run = decode(
        conversation, conversation.prefill(toy.prompt), PathDrafter(exit_path(4), 4), Sampling(), 40, frozenset()
    )
    next(run.rounds), next(run.rounds)
    del run
    assert toy.run(PathDrafter(exit_path(4), 4), count=30).tokens == before
    assert conversation.kv.length == len(conversation.tokens) - 1


def test_a_tied_model_and_a_grouped_one_decode_alike_too(make_toy: Callable[..., Toy], toy: Toy) -> None:
    """Head graphs that slice the embedding matrix, and one key/value head for four query heads."""
    spec = type(toy.spec)(tied=True, kv_heads=1, head_dim=32, seed=5)
    other = make_toy(spec, precision=toy.model.artifact.manifest.precision, exit_layers=(2, 4), hot_vocab=100)
    plain = other.run(NoDrafter(), count=60, sampling=WARM)
    for drafter in (
        PathDrafter(exit_path(4), 4, rule=Threshold(0.0)),
        PathDrafter(exit_path(2), 2, rule=Threshold(0.0)),
        PromptLookup(),
        SkipMiddle(),
    ):
        assert other.run(drafter, count=60, sampling=WARM).tokens == plain.tokens


def test_a_drafter_sees_tokens_before_it_is_asked_and_rounds_after(fp32: Toy) -> None:
    """The protocol: propose reads committed tokens only; observe comes once after each proposal, before the next."""
    log: list[str] = []

    class Spy:
        def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
            assert conversation.kv.length == len(conversation.tokens) - 1
            log.append(f"propose {len(conversation.tokens)} {max_tokens}")
            return Draft((3,) * min(2, max_tokens))

        def observe(self, result: Round) -> None:
            log.append(f"observe {result.num_drafted} {len(result.tokens)}")
            assert result.seconds > 0

    run = fp32.run(Spy(), count=4)
    n = len(fp32.prompt)
    assert [len(r.tokens) for r in run.rounds] == [1, 1, 1]
    assert log == [
        f"propose {n + 1} 2", "observe 2 1", f"propose {n + 2} 1", "observe 1 1", f"propose {n + 3} 0", "observe 0 1",
    ]  # fmt: skip


@pytest.mark.parametrize("tokens", [(5,) * 40, (10**8,), (-1,)])
def test_a_drafter_that_breaks_its_contract_is_refused(fp32: Toy, tokens: tuple[int, ...]) -> None:
    """An id beyond the vocabulary reaches a gather that does not check it."""

    class Careless:
        def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
            return Draft(tokens)

        def observe(self, result: Round) -> None:
            """Never reached."""

    with pytest.raises(UsageError, match="drafter"):
        fp32.run(Careless())
