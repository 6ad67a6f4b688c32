"""An engine and a codec without networks: they say what a test wants, and remember."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vlmtasks.generation import Generation


class LetterVocabulary:
    """Implements vlmtasks.tokens.TokenVocabulary: loc, seg, then one id for each Unicode letter."""

    loc_start = 3
    seg_start = 3 + 1024
    letters = 3 + 1024 + 128
    size = letters + 0x110000
    end_ids = frozenset((0, 1, 2))

    def decode(self, ids: Sequence[int], /) -> str:
        return "".join(map(self._token, ids))

    def encode(self, text: str) -> list[int]:
        ids = []
        while text:
            number = text[4:].partition(">")[0]
            if text.startswith(("<loc", "<seg")) and number.isdigit():
                start = self.loc_start if text.startswith("<loc") else self.seg_start
                ids.append(start + int(number))
                text = text[5 + len(number) :]
            else:
                ids.append(self.letters + ord(text[0]))
                text = text[1:]
        return ids

    def ids_of(self, text: str, /) -> list[int]:
        return [self.letters + ord(text)] if len(text) == 1 else []

    def _token(self, token_id: int) -> str:
        if token_id < self.seg_start:
            return f"<loc{token_id - self.loc_start:04d}>"
        if token_id < self.letters:
            return f"<seg{token_id - self.seg_start:03d}>"
        return chr(token_id - self.letters)


@dataclass(frozen=True)
class StubToken:
    """As `vlmtasks.engine.engine.StreamedToken`."""

    token_id: int | None
    logprob: float
    text: str
    finish_reason: str | None
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class StubEncoded:
    image_size: tuple[int, int]
    colour: tuple[int, int, int]


class StubCodec:
    """A mask codec whose masks are full; its fingerprint is "0" × 64."""

    fingerprint = "0" * 64

    def decode(self, codes: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        return np.ones((len(codes), 64, 64), np.float32)


class StubEngine:
    """The interface of `vlmtasks.engine.Engine` as far as the API uses it.

    answer: what it says, or a function of prompt and encoded picture. It is cut at max_new_tokens.
    encoded: the pictures that passed through the vision tower, batch by batch.
    prompts, keywords: of every call of generate and stream. streamed: tokens of all streams.
    """

    def __init__(
        self,
        answer: str | Callable[[str, StubEncoded], str] = "",
        *,
        metadata: dict[str, Any] | None = None,
        context: int = 4096,
    ) -> None:
        self.answer = answer
        self.metadata = metadata or {}
        self.folder = Path("stub")
        self.vocabulary = LetterVocabulary()
        self.stop_ids = frozenset({1})
        self.context = context
        self.encoded: list[list[tuple[int, int]]] = []
        self.prompts: list[list[str]] = []
        self.keywords: list[dict[str, Any]] = []
        self.streamed = 0

    def encode_image(self, pictures: Sequence[Image.Image]) -> list[StubEncoded]:
        assert all(picture.mode == "RGB" for picture in pictures)
        self.encoded.append([picture.size for picture in pictures])
        return [StubEncoded(p.size, p.getpixel((0, 0))) for p in pictures]  # type: ignore[arg-type]

    def room(self, image: StubEncoded, prompt: str, least: int = 1) -> int:
        return self.context - len(prompt)

    def generate(
        self,
        images: Sequence[StubEncoded],
        prompts: Sequence[str],
        *,
        max_new_tokens: int,
        **keywords: Any,
    ) -> list[Generation]:
        assert len(images) == len(prompts)
        self.prompts.append(list(prompts))
        self.keywords.append({"max_new_tokens": max_new_tokens, **keywords})
        return [
            self._say(prompt, image, max_new_tokens)
            for prompt, image in zip(prompts, images, strict=True)
        ]

    def stream(
        self, image: StubEncoded, prompt: str, *, max_new_tokens: int, **keywords: Any
    ) -> Iterator[StubToken]:
        self.prompts.append([prompt])
        self.keywords.append({"max_new_tokens": max_new_tokens, **keywords})
        answer = self._say(prompt, image, max_new_tokens)
        last = len(answer.token_ids) - 1
        for place, token_id in enumerate(answer.token_ids):
            self.streamed += 1
            is_cut = place == last and answer.finish_reason == "length"
            reason = "length" if is_cut else None
            yield StubToken(token_id, -0.5, self.vocabulary.decode([token_id]), reason)
        if answer.finish_reason == "stop":
            yield StubToken(None, -0.5, "", "stop")

    def _say(self, prompt: str, image: StubEncoded, limit: int) -> Generation:
        text = self.answer if isinstance(self.answer, str) else self.answer(prompt, image)
        ids = self.vocabulary.encode(text)
        reason = "stop" if len(ids) < limit else "length"
        ids = ids[:limit]
        logprobs = (-0.5,) * len(ids)
        return Generation(self.vocabulary.decode(ids), tuple(ids), logprobs, reason)
