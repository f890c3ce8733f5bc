"""A tokenizer of single characters that Hugging Face and vLLM both load from a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, END, UNKNOWN = "<pad>", "<end>", "?"
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
VOCABULARY: dict[str, int] = {token: i for i, token in enumerate([PAD, END, *CHARACTERS])}
PAD_ID, END_ID = VOCABULARY[PAD], VOCABULARY[END]


def encode(text: str) -> list[int]:
    """Token ids of ``text``, one a character; what is not printable ASCII becomes ``?``."""
    unknown = VOCABULARY[UNKNOWN]
    return [VOCABULARY.get(character, unknown) for character in text]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The same as a fast tokenizer, to be saved beside a model."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast: Any = PreTrainedTokenizerFast  # its constructor carries no types
    built: PreTrainedTokenizerFast = fast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
    )
    return built
