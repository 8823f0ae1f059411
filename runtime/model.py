"""The public object: text in, text out. Shared by threads; whatever changes is a conversation's."""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Unpack

from ..errors import RuntimeSetupError, UsageError, unknown_name
from .artifact import Artifact, open_artifact
from .conversation import Conversation
from .costs import Profile, falling_step
from .drafters.base import Drafter
from .drafters.kind import DraftContext
from .drafters.registry import candidates, kinds
from .drafters.spec import DraftSpec, parse
from .generation import Generation, Request, TokenStream
from .lifetime import running
from .logprobs import check_logprobs
from .measure import measure
from .messages import Message
from .probe_texts import PROBE_TEXTS
from .profile_store import load_profile, store_profile
from .recommended import recommended
from .sampling import Sampling, SamplingOptions
from .sessions import Sessions
from .stack import AS_THEY_COME, Passes
from .stop_strings import StopStrings
from .text import TextCodec
from .threads import quota_warning

DEFAULT_MAX_NEW_TOKENS = 256
_MEASUREMENTS = 3  # at most, where a busy machine spoils them
_SAID = ("prompt", "messages", "tools", "chat_template_kwargs")


def notify_stderr(message: str) -> None:
    """Where a model says what it is doing, unless told otherwise."""
    if sys.stderr is not None:  # it is closed; print would take standard output instead
        print(message, file=sys.stderr, flush=True)


class GenerationOptions(SamplingOptions, total=False):
    """What :meth:`Model.stream` and :meth:`Model.generate` can be told.

    ``max_new_tokens``: at most this many (256). ``draft``: the name of a drafter ('auto', 'none', 'prompt-lookup',
    'early-exit', 'fewer-experts'), with options where it has some ('early-exit:layer=20,tokens=4'), or a drafter of
    your own. ``exit_layer``, ``num_draft_tokens`` and ``draft_experts`` are other spellings of the options layer,
    tokens and experts.

    ``temperature`` 0 (the default) is greedy; then only penalties have an effect. Sampling takes the ``top_k`` most
    likely tokens (0: all), of those the smallest set that reaches ``top_p`` (1: all), of those what is at least
    ``min_p`` times as likely as the best (0: all), drawn with ``seed``: without it another one is taken each
    time, and the result has it. ``repetition_penalty`` (1: off) weakens every token of prompt and output,
    ``presence_penalty`` (0: off) every token of the output.

    ``stop``: texts that end the answer and do not show; special tokens too. ``logprobs``: tell each token's
    log-probability and those of so many of the likeliest ones (0 to 20; None: none). ``exact``: pad and cut passes so
    that the output is the same, bit for bit, whatever drafts; by default the conversation's, or off.
    ``conversation``: from :meth:`Model.conversation`.
    """

    max_new_tokens: int
    draft: str | Drafter
    exit_layer: int | None
    num_draft_tokens: int | None
    draft_experts: int | None
    stop: Sequence[str] | None
    logprobs: int | None
    exact: bool | None
    conversation: Conversation | None


class Model:
    """A loaded artifact. Made by :func:`load`."""

    def __init__(self, artifact: Artifact, sessions: Sessions, notify: Callable[[str], None]) -> None:
        self.artifact = artifact
        self.sessions = sessions
        self.codec = TextCodec(artifact)
        self._notify = notify
        # Filled in later: this machine's profile, once it is known, and what need not be said twice.
        self._profile: Profile | None = None
        self._measuring = threading.Lock()
        self._warned_greedy = False

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> TokenStream:
        """Generate token by token.

        Args:
            prompt: raw text; or ``messages``: a chat, put through the model's own template.
            tools: with messages: JSON schemas of functions that the model may call.
            chat_template_kwargs: with messages: what else its template reads, such as {"enable_thinking": False}.
            options: see :class:`GenerationOptions`.

        Raises:
            UsageError: an argument cannot work.
            ContextLengthError: the prompt is longer than the context.
            RuntimeSetupError: ``exact`` is asked for where nothing makes kernels row-invariant.
        """
        _refuse_unknown(options, {*_SAID, *GenerationOptions.__optional_keys__})
        with running:
            ids = self._encode(prompt, messages, tools, chat_template_kwargs)
        return self.stream_ids(ids, **options)

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Generation:
        """Generate to the end; arguments and errors as in :meth:`stream`."""
        stream = self.stream(
            prompt, messages=messages, tools=tools, chat_template_kwargs=chat_template_kwargs, **options
        )
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
        draft_experts: int | None = None,
        stop: Sequence[str] | None = (),
        logprobs: int | None = None,
        exact: bool | None = None,
        conversation: Conversation | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> TokenStream:
        """:meth:`stream` from token ids as they are."""
        if not isinstance(max_new_tokens, Integral) or isinstance(max_new_tokens, bool) or max_new_tokens < 0:
            raise UsageError(
                f"`max_new_tokens` {max_new_tokens!r}: it must be a whole number, 0 or more.", "max_new_tokens"
            )
        if not isinstance(draft, str) and not hasattr(draft, "propose"):
            raise UsageError(f"`draft` {draft!r}: it must be a name or an object that proposes tokens.", "draft")
        prompt = self._checked_ids(ids)
        chosen = self._checked_sampling(sampling)
        check_logprobs(logprobs)
        stop_strings = StopStrings(stop or ())
        flags = {"exit_layer": exit_layer, "num_draft_tokens": num_draft_tokens, "draft_experts": draft_experts}
        spec = self._checked_spec(draft, flags)
        used = self.conversation(exact=bool(exact)) if conversation is None else conversation
        self._check_conversation(used, exact)
        used.check_fits(len(prompt))
        drafter = spec.make(self._draft_context(used)) if isinstance(spec, DraftSpec) else spec
        stop_ids = frozenset(i for text in stop or () if (i := self.codec.special_id(text)) is not None)
        request = Request(prompt, drafter, chosen, int(max_new_tokens), stop_strings, logprobs, stop_ids)
        return TokenStream(used, request, self.codec)

    @property
    def recommended(self) -> SamplingOptions:
        """How the model's makers recommend to sample, for ``generate(..., **model.recommended)``; may be empty. An
        ArtifactError where what they recommend cannot be."""
        return recommended(self.artifact)

    def conversation(self, *, exact: bool = False) -> Conversation:
        """For ``stream(..., conversation=...)``: keeps what it has run, so that the next prompt, as far as it begins
        with the same tokens, need not run again. Use it for one generation at a time.

        Raises:
            RuntimeSetupError: as :meth:`exact_passes`.
        """
        return Conversation(self.sessions, self.exact_passes() if exact else AS_THEY_COME, exact=exact)

    def _check_conversation(self, conversation: Conversation, exact: bool | None) -> None:
        if conversation.sessions is not self.sessions:
            raise UsageError("this conversation is another model's; make one with this model's conversation().")
        if exact is not None and bool(exact) != conversation.exact:
            made, asked = ("with", "without") if conversation.exact else ("without", "with")
            raise UsageError(
                f"this conversation was made {made} exact and cannot go on {asked} it: its rows have other bits. "
                f"Make another one with conversation(exact={bool(exact)})."
            )

    def _checked_sampling(self, options: SamplingOptions) -> Sampling:
        _refuse_unknown(options, GenerationOptions.__optional_keys__)
        sampling = Sampling.of(options)
        if sampling.without_effect and not self._warned_greedy:
            self._warned_greedy = True
            names = ", ".join(f"`{name}`" for name in sampling.without_effect)
            self._notify(f"warning: temperature 0 is greedy, so {names} will have no effect; set a temperature.")
        return sampling

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
        with self._measuring, running:
            known = self._profile
            if known is not None and not known.covers(self._path_names()):  # a drafter was registered meanwhile
                known = None
            found = None if refresh else known or self.stored_profile()
            self._profile = found or self._measure()
            return self._profile

    def _measure(self) -> Profile:
        self._notify(
            "measuring, once on this machine, what passes and drafts cost and whether rows are treated alike; that "
            "takes some 15 seconds for a small model ..."
        )
        found = self._measured_calmly()
        if self.sessions.kernels is not None and found.exact_passes != AS_THEY_COME:
            self._notify(
                f"warning: {self.sessions.kernels_name} kernels do not treat rows alike here, as they should; only "
                "`exact` gives plain decoding's text. Please report it with this machine's processor."
            )
        falling = falling_step(found.step_seconds)
        if falling is not None:
            fewer, more = falling
            self._notify(
                f"warning: a pass over {more} rows seems to cost less than one over {fewer}, so other work disturbed "
                "the measurement; it is used now and not kept. Run selfspec profile when the machine is quiet."
            )
            return found
        try:
            store_profile(self.artifact, self.sessions.threads, found)
        except OSError as error:
            self._notify(f"warning: the profile cannot be kept ({error}); it will be measured again next time.")
        return found

    def _measured_calmly(self) -> Profile:
        """Measure again where the figures contradict each other, a few times at most."""
        probes = [self.codec.encode(text) for text in PROBE_TEXTS]
        paths = candidates(self.artifact.manifest)
        for _ in range(_MEASUREMENTS - 1):
            found = measure(self.sessions, probes, paths)
            if falling_step(found.step_seconds) is None:
                return found
        return measure(self.sessions, probes, paths)

    def stored_profile(self) -> Profile | None:
        """This machine's profile, if it was measured before."""
        return load_profile(self.artifact, self.sessions.threads, self._path_names())

    def _path_names(self) -> list[str]:
        return [path.name for path in candidates(self.artifact.manifest)]

    def exact_passes(self) -> Passes:
        """How ``exact`` puts rows into passes.

        Raises:
            RuntimeSetupError: no way that was tried makes this machine's kernels row-invariant.
        """
        passes = self.profile().exact_passes
        if passes is None:
            raise RuntimeSetupError(
                "exact cannot be promised here: on this machine no padding of passes gives a row the same bits "
                "whatever stands beside it. Run without `exact`, or export in another precision."
            )
        return passes

    def drafter(self, draft: str, conversation: Conversation) -> Drafter:
        """The drafter that ``draft`` names, made for one generation over ``conversation``.

        Raises:
            UsageError: there is no such drafter, or its options do not fit this model.
        """
        spec = parse(draft)
        spec.check(self.artifact.manifest)
        return spec.make(self._draft_context(conversation))

    def _checked_spec(self, draft: str | Drafter, flags: dict[str, int | None]) -> DraftSpec | Drafter:
        if not isinstance(draft, str):
            if any(value is not None for value in flags.values()):
                raise UsageError(f"{', '.join(flags)} have no effect on a drafter of your own.", parameter="draft")
            return draft
        spec = parse(draft, **flags)
        spec.check(self.artifact.manifest)
        return spec

    def _draft_context(self, conversation: Conversation) -> DraftContext:
        return DraftContext(self.artifact.manifest, self.profile, conversation.passes.min_rows, kinds())

    def _encode(
        self,
        prompt: str | None,
        messages: Sequence[Message] | None,
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any] | None,
    ) -> list[int]:
        if (prompt is None) == (messages is None):
            raise UsageError("give either `prompt` or `messages`, and not both.")
        if messages is not None:
            if not messages:
                raise UsageError("`messages` is empty; give at least one message.", "messages")
            return self.codec.encode_chat(messages, tools, variables)
        for name, value in (("tools", tools), ("chat_template_kwargs", variables)):
            if value is not None:
                raise UsageError(f"`{name}` goes through the chat template, so it needs `messages`, no `prompt`.", name)
        if not prompt:
            raise UsageError("`prompt` is empty; give at least one character of text.", "prompt")
        return self.codec.encode(prompt)


def _refuse_unknown(options: Iterable[str], known: Collection[str]) -> None:
    for name in options:
        if name not in known:
            raise UsageError(unknown_name("option", name, known), name)


def load(path: str | Path, *, threads: int | None = None, notify: Callable[[str], None] = notify_stderr) -> Model:
    """Load an artifact made by ``selfspec-export``.

    A process that has loaded one may fork: a child can go on with the model, on one thread, and ends normally (with
    glibc; elsewhere let it end by ``os._exit``).

    Args:
        threads: of the process's one pool; by default the physical cores, or
            what a control group's quota pays for. Every model of a process shares it.
        notify: told, in one sentence each, about measurements and warnings.

    Raises:
        ArtifactError: missing, damaged or of another format version.
        UsageError, RuntimeSetupError: ``threads`` is below 1, or the process already runs with another number.
        KernelSetupError: it was exported for native kernels, which are not installed or cannot run here.
    """
    with running:
        artifact = open_artifact(path)
        sessions = Sessions(artifact, threads)
        sessions.load_all()
        warning = quota_warning(sessions.threads)
        if warning is not None:
            notify(warning)
        return Model(artifact, sessions, notify)
