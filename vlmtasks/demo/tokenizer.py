"""The demo's own small tokenizer, in Gemma's manner, and the files that go with it.

    python -m vlmtasks.demo.tokenizer --out DIR

Every domain word is one token, with the blank before it ("▁cat") and without ("cat", at the start
of a text); everything else is spelled character by character. Blanks become "▁", as in Gemma.
Order of the ids: <pad> <eos> <bos> <unk>, characters, words, <loc0000>…<loc1023>,
<seg000>…<seg127>, <image>.
"""

import argparse
import json
import string
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from vlmtasks.demo.classes import domain_words
from vlmtasks.tokens import LOC_BINS, SEG_CODES

PAD, EOS, BOS, UNK, IMAGE = "<pad>", "<eos>", "<bos>", "<unk>", "<image>"
IMAGE_SIZE, PATCH_SIZE = 224, 16
IMAGE_TOKENS = (IMAGE_SIZE // PATCH_SIZE) ** 2

_BLANK = "▁"


def text_tokens() -> list[str]:
    """The tokens of ordinary text in the order of their ids, from <pad> on."""
    characters = ["\n", _BLANK, *(c for c in string.printable[:94])]
    words = domain_words()
    spaced = [_BLANK + word for word in (";", *words)]
    tokens = [PAD, EOS, BOS, UNK, *characters, *spaced, *words]
    return list(dict.fromkeys(tokens))


def added_tokens() -> list[str]:
    """The tokens behind the text tokens, in the order of their ids."""
    locs = [f"<loc{value:04d}>" for value in range(LOC_BINS)]
    return [*locs, *(f"<seg{value:03d}>" for value in range(SEG_CODES)), IMAGE]


def build_tokenizer() -> Tokenizer:
    """The tokenizer as the `tokenizers` library runs it; texts encode without <bos>.

    A pre-tokenizer cuts words from everything else, and a word that is in the vocabulary is taken
    whole (`ignore_merges`). There are no merges: any other word falls apart into its characters.
    """
    vocabulary = {token: index for index, token in enumerate(text_tokens())}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[], unk_token=UNK, ignore_merges=True))
    tokenizer.normalizer = normalizers.Replace(" ", _BLANK)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(
        Regex(rf"{_BLANK}?(?:[a-z]+|;)|[\s\S]"), behavior="isolated"
    )
    tokenizer.decoder = decoders.Sequence([decoders.Replace(_BLANK, " "), decoders.Fuse()])
    tokenizer.add_special_tokens([_special(token) for token in (PAD, EOS, BOS, UNK)])
    # loc and seg are not special: decoding keeps them
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in added_tokens()[:-1]])
    tokenizer.add_special_tokens([_special(IMAGE)])
    return tokenizer


def save_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and the settings that transformers wants beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    build_tokenizer().save(str(folder / "tokenizer.json"))
    for name, content in _settings().items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def _special(token: str) -> AddedToken:
    return AddedToken(token, special=True, normalized=False)


def _settings() -> dict[str, dict]:
    special = {"pad_token": PAD, "eos_token": EOS, "bos_token": BOS, "unk_token": UNK}
    return {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "processor_class": "PaliGemmaProcessor",
            "add_bos_token": False,
            "add_eos_token": False,
            "clean_up_tokenization_spaces": False,
            "padding_side": "left",
            "model_max_length": 512,
            "extra_special_tokens": {"image_token": IMAGE},
            **special,
        },
        "special_tokens_map.json": {**special, "image_token": IMAGE},
        "preprocessor_config.json": {
            "image_processor_type": "SiglipImageProcessor",
            "processor_class": "PaliGemmaProcessor",
            "size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE},
            "do_resize": True,
            "resample": 3,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "image_seq_length": IMAGE_TOKENS,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the demo checkpoint's tokenizer files.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write them to")
    save_tokenizer(parser.parse_args().out)


if __name__ == "__main__":
    main()
