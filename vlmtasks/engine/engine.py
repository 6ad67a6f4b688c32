"""The engine: pictures and prompts in, `Generation`s out.

Letters used in this package: B rows, S image tokens, P prompt tokens, T new tokens, D width,
V rows of the embedding table.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vlmtasks.engine.beam import beam_search
from vlmtasks.engine.checkpoints import Checkpoint, load_checkpoint
from vlmtasks.engine.config import PaliGemmaConfig
from vlmtasks.engine.decoding import Answer, TokenStep, decode_steps
from vlmtasks.engine.decoding_options import DecodingOptions
from vlmtasks.engine.devices import resolve_device, resolve_dtype
from vlmtasks.engine.encoded_image import EncodedImage, fingerprint_of, join_images
from vlmtasks.engine.locate import locate
from vlmtasks.engine.pixels import to_pixels
from vlmtasks.engine.prompt_ids import check_length, pad_ids, prompt_ids
from vlmtasks.engine.streaming import TextStream
from vlmtasks.engine.token_choice import TokenConstraint, TokenLimits, require_finite
from vlmtasks.engine.tokenizer import Tokenizer
from vlmtasks.errors import InputError
from vlmtasks.generation import FinishReason, Generation, TopLogprobs

QUANTIZATIONS = (None,)


@dataclass(frozen=True)
class StreamedToken:
    """One step of `Engine.stream`.

    token_id: the new id, None for the last step of an answer that ended by itself.
    text: the text that became certain with it; the pieces add up to the text of the answer.
    finish_reason: set on the last step.
    top_logprobs: the likeliest ids of this step, when asked for.
    """

    token_id: int | None
    logprob: float
    text: str
    finish_reason: FinishReason | None
    top_logprobs: TopLogprobs = ()


class Engine:
    """A loaded PaliGemma with its tokenizer. Make one with `Engine.load`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.network = checkpoint.network
        self.tokenizer: Tokenizer = checkpoint.tokenizer
        self.config: PaliGemmaConfig = self.network.config
        weight = self.network.language_model.embed_tokens.weight
        self.device, self.dtype = weight.device, weight.dtype
        rows = torch.arange(self.config.text_config.vocab_size, device=self.device)
        choosable = (rows < self.tokenizer.size) & (rows != self.config.image_token_index)
        self._limits = TokenLimits(checkpoint.stop_ids, choosable)
        self.fingerprint = fingerprint_of(checkpoint)

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        quantize: str | None = None,
        revision: str | None = None,
        token: str | None = None,
        resolution: int | None = None,
        adapter: str | Path | None = None,
        final_softcap: bool = True,
    ) -> "Engine":
        """Loads a checkpoint.

        source: a folder as transformers saves it, a big_vision `.npz` beside a tokenizer.json, a
            LoRA folder whose base is on this machine, or a name on the hub ("organisation/name").
        device: "auto" (a GPU where there is one), "cpu", "cuda", "cuda:1" …
        dtype: "auto" (as stored; float16 becomes float32 on the CPU), "float32", "bfloat16" or
            "float16". A CPU without bfloat16 instructions is several times faster in "float32",
            which takes twice the memory of a bfloat16 file.
        revision, token: for the hub. adapter: a LoRA folder to merge into the weights.
        resolution: another side of the model input in pixels than the checkpoint's.
        final_softcap: False leaves out the final soft-cap of PaliGemma 2, which changes the
            probabilities but not the greedy answer (see `score_definition`).
        Raises MissingFileError and CheckpointError (both ValueErrors) for a checkpoint that cannot
        be used, InputError for an option that is not allowed.
        """
        if not any(quantize is one for one in QUANTIZATIONS):
            allowed = ", ".join(map(repr, QUANTIZATIONS))
            raise InputError(f"quantize={quantize!r} is not supported; allowed: {allowed}")
        where, number_type = resolve_device(device), resolve_dtype(dtype)
        base, found_adapter = locate(source, adapter, revision=revision, token=token)
        return cls(
            load_checkpoint(
                base,
                device=where,
                dtype=number_type,
                resolution=resolution,
                adapter=found_adapter,
                final_softcap=final_softcap,
            )
        )

    @property
    def vocabulary(self) -> Tokenizer:
        """What ids mean, as `vlmtasks.tokens.parse_objects` wants it."""
        return self.tokenizer

    @property
    def stop_ids(self) -> frozenset[int]:
        """The ids that can end an answer: <eos>, and what the checkpoint names besides."""
        rows = len(self._limits.choosable)
        return frozenset(
            i for i in self.checkpoint.stop_ids if i < rows and self._limits.choosable[i]
        )

    @property
    def folder(self) -> Path:
        return self.checkpoint.folder

    @property
    def metadata(self) -> dict[str, Any]:
        """The content of the folder's `vlmtasks.json` (mask codec, box scale, …), or {}."""
        return self.checkpoint.metadata

    @property
    def score_definition(self) -> str:
        """What the logprobs of this engine are, for whoever records scores."""
        cap = self.config.text_config.final_logit_softcapping
        final = "no final soft-cap" if cap is None else f"final soft-cap {cap:g}"
        return f"log-softmax of the raw logits, {final}, {self.dtype}".replace("torch.", "")

    def encode_image(
        self, pictures: Sequence[Image.Image], *, batch_size: int = 8
    ) -> list[EncodedImage]:
        """RGB pictures of PIL → one encoding each; the vision tower runs once a picture."""
        _check_batch_size(batch_size)
        encoded = []
        for start in range(0, len(pictures), batch_size):
            part = pictures[start : start + batch_size]
            for picture, tokens in zip(part, self._image_tokens(part), strict=True):
                # a copy: an encoding that is kept must not keep the whole batch in memory
                encoded.append(EncodedImage(tokens.clone(), picture.size, self.fingerprint))
        return encoded

    def generate(
        self,
        images: Sequence[EncodedImage | Sequence[EncodedImage]],
        prompts: Sequence[str],
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | None = None,
        num_beams: int = 1,
        best_of: int = 1,
        raw_logprobs: bool = True,
        top_logprobs: int = 0,
        location_tokens: bool = False,
        constraints: Sequence[TokenConstraint | None] | None = None,
        on_step: Callable[[TokenStep], object] | None = None,
        batch_size: int = 16,
    ) -> list[Generation]:
        """Answers prompts[i] about images[i], in this order, `batch_size` at a time.

        images[i] may be several encodings: pictures of one prompt, or frames of a video.
        prompts: the prefix without its final newline, for example "detect cat ; dog".
        location_tokens: read <loc0000>…<loc1023> in the prompts as location tokens.
        constraints: one a prompt, see `token_choice.TokenConstraint`. on_step: is called with each
        new token. The rest: see `decoding_options.DecodingOptions`.
        Raises PromptError (too long, no string), InputError, NumericsError.
        """
        options = DecodingOptions(
            max_new_tokens, temperature, top_p, seed, best_of, num_beams, raw_logprobs, top_logprobs
        )
        rows = self._rows(images, prompts, max_new_tokens, location_tokens)
        _check_batch_size(batch_size)
        if constraints is not None and len(constraints) != len(rows):
            raise InputError(
                f"constraints must be one a prompt: {len(constraints)} for {len(rows)} prompts"
            )
        generations: list[Generation] = []
        for start in range(0, len(rows), batch_size):
            part = rows[start : start + batch_size]
            some = None if constraints is None else constraints[start : start + batch_size]
            decode = self._search if num_beams > 1 else self._sample
            answers = decode(part, options, some, start, on_step)
            generations += [self._generation(answer) for answer in answers]
        return generations

    def room(
        self, image: EncodedImage | Sequence[EncodedImage], prompt: str, least: int = 1
    ) -> int:
        """How many new tokens the context leaves. PromptError when it leaves less than `least`."""
        (row,) = self._rows([image], [prompt], least, location_tokens=False)
        return self.config.text_config.max_position_embeddings - len(row.ids)

    def stream(
        self,
        image: EncodedImage | Sequence[EncodedImage],
        prompt: str,
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | None = None,
        raw_logprobs: bool = True,
        top_logprobs: int = 0,
        location_tokens: bool = False,
        constraint: TokenConstraint | None = None,
    ) -> Iterator[StreamedToken]:
        """`generate` for one prompt, token by token; closing the iterator stops the work."""
        options = DecodingOptions(
            max_new_tokens,
            temperature,
            top_p,
            seed,
            raw_logprobs=raw_logprobs,
            top_logprobs=top_logprobs,
        )
        rows = self._rows([image], [prompt], max_new_tokens, location_tokens)
        return self._stream(rows, options, constraint)

    def _stream(
        self, rows: "list[_Row]", options: DecodingOptions, constraint: TokenConstraint | None
    ) -> Iterator[StreamedToken]:
        text = TextStream(self.tokenizer)
        for (step,) in self._steps(rows, options, [constraint], 0):
            stopped = step.finish_reason == "stop"
            piece = "" if stopped else text.add(step.token_id)
            if step.finish_reason is not None:
                piece += text.finish()
            token_id = None if stopped else step.token_id
            yield StreamedToken(
                token_id, step.logprob, piece, step.finish_reason, step.top_logprobs
            )

    @torch.inference_mode()
    def _image_tokens(self, pictures: Sequence[Image.Image]) -> Tensor:
        pixels = to_pixels(pictures, self.checkpoint.pixel_config).to(self.device)
        tokens = self.network.encode_image(pixels)
        require_finite(tokens, "vision tower and projector")
        return tokens

    def _rows(
        self,
        images: Sequence[EncodedImage | Sequence[EncodedImage]],
        prompts: Sequence[str],
        max_new_tokens: int,
        location_tokens: bool,
    ) -> "list[_Row]":
        if isinstance(prompts, str) or len(images) != len(prompts):
            raise InputError(
                f"generate takes one picture (or list of pictures) a prompt, not {len(images)} for "
                f"{'a single string' if isinstance(prompts, str) else len(prompts)}"
            )
        limit = self.config.text_config.max_position_embeddings
        rows = []
        for image, prompt in zip(images, prompts, strict=True):
            tokens = join_images(image, self.fingerprint)
            ids = prompt_ids(
                self.tokenizer,
                prompt,
                len(tokens),
                self.config.image_token_index,
                location_tokens=location_tokens,
            )
            check_length(len(tokens), len(ids) - len(tokens), max_new_tokens, limit)
            rows.append(_Row(ids, tokens))
        return rows

    def _steps(
        self,
        rows: "list[_Row]",
        options: DecodingOptions,
        constraints: Sequence[TokenConstraint | None] | None,
        first_row: int,
    ) -> Iterator[list[TokenStep]]:
        prompts = pad_ids([row.ids for row in rows], self.tokenizer.pad_id, self.device)
        tokens = [row.image_tokens for row in rows]
        return decode_steps(
            self.network, prompts, tokens, options, self._limits, constraints, first_row
        )

    def _sample(
        self,
        rows: "list[_Row]",
        options: DecodingOptions,
        constraints: Sequence[TokenConstraint | None] | None,
        first_row: int,
        on_step: Callable[[TokenStep], object] | None,
    ) -> list[Answer]:
        """Greedy or sampled answers, the best of `best_of` for each prompt."""
        copies = options.best_of
        answers = [Answer() for _ in range(len(rows) * copies)]
        for steps in self._steps(rows, options, constraints, first_row):
            for step in steps:
                answers[step.row].add(step)
                if on_step is not None:
                    on_step(step.shifted(first_row * copies))
        groups = [answers[start : start + copies] for start in range(0, len(answers), copies)]
        return [max(group, key=lambda answer: answer.total_logprob) for group in groups]

    def _search(
        self,
        rows: "list[_Row]",
        options: DecodingOptions,
        constraints: Sequence[TokenConstraint | None] | None,
        first_row: int,
        on_step: Callable[[TokenStep], object] | None,
    ) -> list[Answer]:
        """Beam search, prompt after prompt."""
        if on_step is not None:
            raise InputError("beam search has no steps to report; leave out on_step or num_beams")
        answers = []
        for index, row in enumerate(rows):
            prompt = pad_ids([row.ids], self.tokenizer.pad_id, self.device)
            constraint = None if constraints is None else constraints[index]
            answers.append(
                beam_search(
                    self.network, prompt, row.image_tokens, options, self._limits, constraint
                )
            )
        return answers

    def _generation(self, answer: Answer) -> Generation:
        return Generation(
            self.tokenizer.decode(answer.token_ids),
            tuple(answer.token_ids),
            tuple(answer.logprobs),
            answer.finish_reason,
            tuple(answer.top_logprobs) if any(answer.top_logprobs) else (),
        )


@dataclass(frozen=True)
class _Row:
    """One prompt: all its ids, and its image tokens (S, D)."""

    ids: list[int]
    image_tokens: Tensor


def _check_batch_size(batch_size: int) -> None:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise InputError(f"batch_size must be an integer of at least 1, not {batch_size!r}")
