"""Which tokens of a vocabulary end generation: known by their text, as in llama.cpp, where a file does not say so.

Files name one end of a sequence; instruction-tuned models end their turns with others too. The texts are those that
llama.cpp goes by, tokens for filling in the middle of code that separate one file from the next among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

TURN_ENDS = frozenset((
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>",
    "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<end_of_utterance>", "<turn|>", "<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~[",
))  # fmt: skip
_FILE_ENDS = {  # the key that names such a token → the texts it goes by where no key does
    "fim_pad_token_id": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep_token_id": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep_token_id": ("<|file_sep|>",),
}
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id", *_FILE_ENDS)
"""Keys below tokenizer.ggml that name a token which ends generation."""

# A token → sets of others; beside all of one, it only separates the parts of an answer, or is a tag of HTML: Gemma's
# vocabularies have those, and ends of their own. llama.cpp makes the exception for Gemma 4 alone.
_NO_ENDS_BESIDE = {
    "<|end|>": ({"<|return|>", "<|call|>"}, {"<|call|>", "<|flush|>"}, {"<|calls|>", "<|flush|>"}),
    "</s>": ({"<|tool_response>"}, {"<eos>", "<end_of_turn>"}),
}


def no_ends(vocabulary: Set[str]) -> set[str]:
    """Texts that look like an end and are none beside the others of ``vocabulary``."""
    return {token for token, sets in _NO_ENDS_BESIDE.items() if any(beside <= vocabulary for beside in sets)}


def turn_ends(vocabulary: Iterable[str], keys: Set[str] = frozenset()) -> set[str]:
    """The texts of ``vocabulary`` that end generation. ``keys``: those of END_KEYS that the file has, which are
    believed instead of a text."""
    known = set(TURN_ENDS)
    for key, texts in _FILE_ENDS.items():
        known.update(() if key in keys else texts)
    vocabulary = set(vocabulary)
    return (known & vocabulary) - no_ends(vocabulary)
