"""The public object: text in, text out. Immutable; each call makes a conversation of its own."""

from __future__ import annotations

import operator
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack

from ..errors import RuntimeSetupError, UsageError
from .artifact import Artifact, open_artifact
from .conversation import Conversation
from .drafters.base import Drafter, Round
from .drafting import DraftOptions, make_drafter
from .engine import decode
from .profile import PROBE_TEXTS, Profile, load_profile, measure, store_profile
from .sampling import Sampling
from .sessions import Sessions
from .stats import Stats
from .text import Message, StreamDecoder, TextCodec

DEFAULT_MAX_NEW_TOKENS = 256


def notify_stderr(message: str) -> None:
    """Where a model says what it is doing, unless told otherwise."""
    print(message, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token. ``text`` may be empty: special tokens have none, and half a character waits."""

    id: int
    text: str
    from_draft: bool


@dataclass(frozen=True, slots=True)
class Generation:
    """An answer. ``finish_reason``: 'stop' (end of sequence), 'length' (max_new_tokens), 'context', or 'unfinished'."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stats: Stats


class GenerationOptions(TypedDict, total=False):
    """What :meth:`Model.stream` and :meth:`Model.generate` can be told.

    ``max_new_tokens``: at most this many (256). ``draft``: 'auto', 'none', 'early-exit', 'prompt-lookup', or a drafter
    of your own. ``exit_layer``: for 'early-exit'; by default the one that a stored profile favours, else the deepest.
    ``num_draft_tokens``: longest draft of a round. ``temperature`` 0 (the default) is greedy; ``top_p`` and ``seed``
    are for sampling. ``exact``: pad every pass so that the output is the same, bit for bit, whatever drafts.
    """

    max_new_tokens: int
    draft: str | Drafter
    exit_layer: int | None
    num_draft_tokens: int | None
    temperature: float
    top_p: float
    seed: int
    exact: bool


class TokenStream:
    """Iterates over tokens as they are committed. Once exhausted, ``result`` is complete."""

    def __init__(
        self,
        conversation: Conversation,
        prompt: list[int],
        drafter: Drafter,
        sampling: Sampling,
        max_new_tokens: int,
        codec: TextCodec,
    ) -> None:
        self.rounds: list[Round] = []
        self._prompt_tokens = len(prompt)
        self._tokens: list[Token] = []
        self._ttft = 0.0
        self._decode_seconds = 0.0
        self._budget = min(max_new_tokens, conversation.config.context_length - len(prompt))
        self._wanted = max_new_tokens
        self._eos = codec.eos_token_ids
        self._decoder = StreamDecoder(codec)
        self._iterator = self._run(conversation, prompt, drafter, sampling)

    def __iter__(self) -> Iterator[Token]:
        return self

    def __next__(self) -> Token:
        return next(self._iterator)

    def _run(
        self, conversation: Conversation, prompt: list[int], drafter: Drafter, sampling: Sampling
    ) -> Iterator[Token]:
        started = time.perf_counter()
        logits = conversation.prefill(prompt)
        for result in decode(conversation, logits, drafter, sampling, self._wanted, self._eos):
            now = time.perf_counter()
            if not self.rounds:
                self._ttft = now - started
            self.rounds.append(result)
            self._decode_seconds = now - started - self._ttft
            for i, token_id in enumerate(result.tokens):
                yield self._token(token_id, from_draft=i < result.num_accepted)

    def _token(self, token_id: int, *, from_draft: bool) -> Token:
        last = token_id in self._eos or len(self._tokens) + 1 == self._budget
        text = self._decoder.push(token_id) + (self._decoder.finish() if last else "")
        self._tokens.append(Token(token_id, text, from_draft))
        return self._tokens[-1]

    @property
    def result(self) -> Generation:
        """What was generated so far."""
        if self._tokens and self._tokens[-1].id in self._eos:
            reason = "stop"
        elif len(self._tokens) < self._budget:
            reason = "unfinished"
        else:
            reason = "length" if self._budget == self._wanted else "context"
        return Generation(
            text="".join(t.text for t in self._tokens),
            token_ids=tuple(t.id for t in self._tokens),
            finish_reason=reason,
            stats=Stats.of(self._prompt_tokens, self._ttft, self._decode_seconds, self.rounds),
        )


class Model:
    """A loaded artifact. Made by :func:`load`."""

    def __init__(self, artifact: Artifact, sessions: Sessions, notify: Callable[[str], None]) -> None:
        self.artifact = artifact
        self.sessions = sessions
        self.codec = TextCodec(artifact)
        self._notify = notify
        self._profile: Profile | None = None  # of this machine, once it is known: the one thing that is filled in later

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> TokenStream:
        """Generate token by token.

        Args:
            prompt: raw text; or ``messages``: a chat, put through the model's own template.
            options: see :class:`GenerationOptions`.

        Raises:
            UsageError: an argument cannot work.
            ContextLengthError: the prompt is longer than the context.
            RuntimeSetupError: ``exact`` is asked for where no row count makes kernels row-invariant.
        """
        return self.stream_ids(self._encode(prompt, messages), **options)

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Generation:
        """Generate to the end; arguments and errors as in :meth:`stream`."""
        stream = self.stream(prompt, messages=messages, **options)
        for _ in stream:
            pass
        return stream.result

    def stream_ids(
        self,
        ids: Sequence[int],
        *,
        max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS,
        draft: str | Drafter = "auto",
        exit_layer: int | None = None,
        num_draft_tokens: int | None = None,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        exact: bool = False,
    ) -> TokenStream:
        """:meth:`stream` from token ids as they are."""
        if not isinstance(max_new_tokens, int) or max_new_tokens < 0:
            raise UsageError(f"--max-new-tokens {max_new_tokens}: it must be a whole number, 0 or more.")
        prompt = self._checked_ids(ids)
        sampling = Sampling(temperature, top_p, seed)
        options = DraftOptions(draft if isinstance(draft, str) else "custom", exit_layer, num_draft_tokens)
        options.check(self.artifact.manifest, custom=not isinstance(draft, str))
        min_rows = self.exact_rows() if exact else 1
        conversation = Conversation(self.sessions, min_rows)
        conversation.check_fits(len(prompt))
        drafter = self._drafter(options, min_rows) if isinstance(draft, str) else draft
        return TokenStream(conversation, prompt, drafter, sampling, max_new_tokens, self.codec)

    def _checked_ids(self, ids: Sequence[int]) -> list[int]:
        vocab = self.artifact.manifest.model.vocab_size
        try:
            prompt = [operator.index(token) for token in ids]
        except TypeError as error:
            raise UsageError(f"prompt token ids must be whole numbers ({error}).") from error
        if not prompt:
            raise UsageError("the prompt is empty; give at least one token.")
        if any(not 0 <= token < vocab for token in prompt):
            raise UsageError(f"a prompt token id is outside the vocabulary of {vocab}.")
        return prompt

    def profile(self, *, refresh: bool = False) -> Profile:
        """This machine's profile: the stored one, or measured now (a few seconds) and stored.

        Args:
            refresh: measure even if one is stored.
        """
        found = None if refresh else self._profile or self.stored_profile()
        if found is not None:
            self._profile = found
            return found
        self._notify("measuring this model on this machine (once, up to 10 s) ...")
        found = measure(self.sessions, [self.codec.encode(text) for text in PROBE_TEXTS])
        try:
            store_profile(self.artifact, self.sessions.threads, found)
        except OSError as error:
            self._notify(f"warning: the profile cannot be kept ({error}); it will be measured again next time.")
        self._profile = found
        return found

    def stored_profile(self) -> Profile | None:
        return load_profile(self.artifact, self.sessions.threads)

    def exact_rows(self) -> int:
        """Rows that ``exact`` pads every pass to.

        Raises:
            RuntimeSetupError: no row count up to 8 makes this machine's kernels row-invariant.
        """
        rows = self.profile().invariant_rows
        if rows is None:
            raise RuntimeSetupError(
                "exact cannot be promised here: on this machine no row count up to 8 gives a row the same bits "
                "whatever stands beside it. Run without exact, or export with another --precision."
            )
        return rows

    def _drafter(self, options: DraftOptions, min_rows: int) -> Drafter:
        return make_drafter(options, self.artifact.manifest, self.profile, min_rows)

    def _encode(self, prompt: str | None, messages: Sequence[Message] | None) -> list[int]:
        if (prompt is None) == (messages is None):
            raise UsageError("give either a prompt or messages, and not both.")
        if messages is not None:
            if not messages:
                raise UsageError("messages is empty; give at least one message.")
            return self.codec.encode_chat(messages)
        if not prompt:
            raise UsageError("the prompt is empty; give at least one character of text.")
        return self.codec.encode(prompt)


def load(path: str | Path, *, threads: int | None = None, notify: Callable[[str], None] = notify_stderr) -> Model:
    """Load an artifact made by ``selfspec-export``.

    Args:
        threads: of the process's one pool; by default the physical cores. Every model of a process shares it.
        notify: told, in one sentence each, about measurements and warnings.

    Raises:
        ArtifactError: missing, damaged or of another format version.
        UsageError, RuntimeSetupError: ``threads`` is below 1, or the process already runs with another number.
    """
    artifact = open_artifact(path)
    sessions = Sessions(artifact, threads)
    sessions.load_all()
    return Model(artifact, sessions, notify)
