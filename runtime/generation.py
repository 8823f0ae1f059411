"""One generation as its reader sees it: tokens with their text as they are committed, and what came of it all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .conversation import Conversation
from .drafters.base import Drafter, Round
from .engine import decode
from .lifetime import running
from .logprobs import TokenLogprobs, TopLogprob
from .sampling import Sampling
from .stats import Stats
from .stop_strings import Piece, StopFilter, StopStrings
from .text import StreamDecoder, TextCodec


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token. ``text`` may be empty: special tokens have none, and half a character waits.

    ``logprob`` and ``top_logprobs``, best first, are there where ``logprobs`` was asked for: natural logarithms, of the
    model's own distribution before penalties and temperature.
    """

    id: int
    text: str
    from_draft: bool
    logprob: float | None = None
    top_logprobs: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Generation:
    """An answer. ``finish_reason``: 'stop' (end of sequence, or ``stop_string``), 'length' (max_new_tokens), 'context'
    (the model's context is full), or 'unfinished'. ``logprobs``: one a token, None where none were asked for.
    ``seed``: with it the same tokens are drawn again; None where the generation was greedy."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stats: Stats
    stop_string: str | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What to generate: everything about one generation but where it runs."""

    prompt: list[int]
    drafter: Drafter
    sampling: Sampling
    max_new_tokens: int
    stop: StopStrings
    num_logprobs: int | None = None
    stop_ids: frozenset[int] = frozenset()
    """Special tokens that end the answer as an end of sequence does."""


class _Run:
    """A generation under way. Apart from its stream, so that dropping the stream ends the iterator at once."""

    def __init__(self, conversation: Conversation, request: Request, codec: TextCodec) -> None:
        self.request = request
        self.rounds: list[Round] = []
        self.tokens: list[Token] = []  # those given out
        self.reused = 0
        self.ttft = 0.0
        self.decode_seconds = 0.0
        self.filter = StopFilter(request.stop)
        self.budget = min(request.max_new_tokens, conversation.config.context_length - len(request.prompt))
        self.eos = codec.eos_token_ids | request.stop_ids
        self._conversation = conversation
        self._decoder = StreamDecoder(codec)
        self._made: list[Token] = []

    def __iter__(self) -> Iterator[Token]:
        with self._conversation.in_use():
            try:
                for piece in self._pieces():
                    self.tokens.append(replace(self._made[piece.index], text=piece.text))
                    yield self.tokens[-1]
            finally:  # closed, failed or cut at a stop string: what nobody saw was never said
                self._conversation.truncate(len(self.request.prompt) + len(self.tokens))

    def _pieces(self) -> Iterator[Piece]:
        for token in self._generate():
            self._made.append(token)
            yield from self.filter.push(token.text)
            if self.filter.match is not None:
                return
        yield from self.filter.finish()

    def _generate(self) -> Iterator[Token]:
        request, started = self.request, time.perf_counter()
        self.reused = self._conversation.resume(request.prompt)
        logits = self._conversation.prefill(request.prompt[self.reused :])
        decoding = decode(
            self._conversation,
            logits,
            request.drafter,
            request.sampling,
            request.max_new_tokens,
            self.eos,
            request.num_logprobs,
        )
        if decoding.first is None:
            return
        self.ttft = time.perf_counter() - started
        yield self._token(decoding.first, decoding.first_logprobs)
        for result in decoding.rounds:
            self.rounds.append(result)
            self.decode_seconds = time.perf_counter() - started - self.ttft
            for i, token_id in enumerate(result.tokens):
                logprobs = result.logprobs[i] if result.logprobs else None
                yield self._token(token_id, logprobs, from_draft=i < result.num_accepted)

    def _token(self, token_id: int, logprobs: TokenLogprobs | None, *, from_draft: bool = False) -> Token:
        last = token_id in self.eos or len(self._made) + 1 == self.budget
        text = self._decoder.push(token_id) + (self._decoder.finish() if last else "")
        token = Token(token_id, text, from_draft=from_draft)
        return token if logprobs is None else replace(token, logprob=logprobs.logprob, top_logprobs=logprobs.top)


class TokenStream:
    """Iterates over tokens as they are committed. Once exhausted, ``result`` is complete.
    ``rounds`` are the engine's, with what was cut off behind a stop string; the first token comes before them.

    Closing or dropping it early ends the generation; its conversation then holds the tokens that were given out. Where
    the process ends while a daemon thread reads it, SystemExit ends that thread before the next pass.
    """

    def __init__(self, conversation: Conversation, request: Request, codec: TextCodec) -> None:
        self._run = _Run(conversation, request, codec)
        self._iterator = iter(self._run)
        self.rounds = self._run.rounds

    def __iter__(self) -> Iterator[Token]:
        return self

    def __next__(self) -> Token:
        with running:
            return next(self._iterator)

    def close(self) -> None:
        """End the generation here."""
        self._iterator.close()  # type: ignore[attr-defined]

    @property
    def result(self) -> Generation:
        """What was generated so far."""
        run, tokens = self._run, self._run.tokens
        logprobs = tuple(TokenLogprobs(t.logprob, t.top_logprobs) for t in tokens if t.logprob is not None)
        return Generation(
            text="".join(t.text for t in tokens),
            token_ids=tuple(t.id for t in tokens),
            finish_reason=self._finish_reason(),
            stats=Stats.of(
                len(run.request.prompt),
                len(tokens),
                run.ttft,
                run.decode_seconds,
                _given_out(run.rounds, max(0, len(tokens) - 1)),
                run.reused,
            ),
            stop_string=run.filter.match,
            logprobs=None if run.request.num_logprobs is None else logprobs,
            seed=None if run.request.sampling.greedy else int(run.request.sampling.seed),
        )

    def _finish_reason(self) -> str:
        run = self._run
        if run.filter.match is not None or (run.tokens and run.tokens[-1].id in run.eos):
            return "stop"
        if len(run.tokens) < run.budget:
            return "unfinished"
        return "length" if run.budget == run.request.max_new_tokens else "context"


def _given_out(rounds: list[Round], count: int) -> Iterator[Round]:
    """The rounds without what comes after their first ``count`` tokens: cut at a stop string, or not yet read."""
    for result in rounds:
        tokens = result.tokens[:count]
        yield replace(result, tokens=tokens, num_accepted=min(result.num_accepted, len(tokens)))
        count -= len(tokens)
