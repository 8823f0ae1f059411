"""An answer by Hugging Face's ``generate``, for the workers whose models have one. Imports transformers."""

from __future__ import annotations

import time
from typing import Any

import torch
from protocol import Answer, Question
from transformers import GenerationConfig


class Stopwatch:
    """A streamer: told of the prompt first, then of new tokens, one or several at once."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.counts: list[int] = []

    def put(self, ids: Any) -> None:
        self.times.append(time.perf_counter())
        self.counts.append(int(ids.numel()))

    def end(self) -> None: ...


def answer(model: Any, request: Question, **options: Any) -> Answer:
    """Greedy, by a generation config of its own, so that no default of the model's folder counts.

    Assisted generation hands over several tokens with the prompt's own; what follows is then scaled to all but one.
    """
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=request.max_new_tokens,
        eos_token_id=request.eos or None,
        pad_token_id=request.eos[0] if request.eos else None,
        **options,
    )
    ids, watch = torch.tensor([request.ids]), Stopwatch()
    started = time.perf_counter()
    output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, streamer=watch)
    found = output[0, len(request.ids) :].tolist()
    first, last, at_once = watch.times[1], watch.times[-1], watch.counts[1]
    behind = len(found) - at_once
    seconds = (last - first) * (len(found) - 1) / behind if behind > 0 else 0.0
    return Answer(found, first - started, seconds)
