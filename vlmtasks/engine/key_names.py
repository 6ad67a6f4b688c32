"""The names of the weights: what files call them, and what our modules call them.

Hugging Face files name a PaliGemma in one of these layouts; which parts carry the inner levels
changed with the versions of transformers, so each part may follow any of them (what training tools
wrap around a module is left out):

    until 4.51                       from 4.52                             ours
    vision_tower.vision_model.·      model.vision_tower.[vision_model.]·   vision_tower.·
    multi_modal_projector.·          model.multi_modal_projector.·         multi_modal_projector.·
    language_model.model.·           model.language_model.·                language_model.·
    language_model.lm_head.weight    lm_head.weight                        lm_head.weight
"""

import re
from collections.abc import Iterable

from vlmtasks.errors import CheckpointError

# For each part, in order: what stands before the rest of the name. All lead to the part's own name.
PREFIXES: dict[str, tuple[str, ...]] = {
    "vision_tower.": (
        "vision_tower.vision_model.",
        "model.vision_tower.vision_model.",
        "model.vision_tower.",
        "vision_tower.",
    ),
    "multi_modal_projector.": ("model.multi_modal_projector.", "multi_modal_projector."),
    "lm_head.": ("language_model.lm_head.", "model.lm_head.", "lm_head."),
    "language_model.": (
        "language_model.model.",
        "model.language_model.model.",
        "model.language_model.",
        "language_model.",
    ),
}

# What files may hold without any use: buffers that follow from the config, SigLIP's pooling head.
_UNUSED = re.compile(r"(rotary_emb\.inv_freq|embeddings\.position_ids)$|^vision_tower\.head\.")


# What torch.compile and DistributedDataParallel put into the names of the modules they wrap.
_WRAPPERS = re.compile(r"^module\.|(?:^|(?<=\.))_orig_mod\.")


def our_name(key: str) -> str:
    """Our name of a weight in a Hugging Face file; unknown names stay as they are."""
    key = _WRAPPERS.sub("", key)
    for ours, theirs in PREFIXES.items():
        for prefix in theirs:
            if key.startswith(prefix):
                return ours + key.removeprefix(prefix)
    return key


def rename_all(keys: Iterable[str]) -> dict[str, str]:
    """Our name → the name in the file, without what PaliGemma never uses.

    Raises CheckpointError when two weights of the file would be the same weight of the model.
    """
    sources: dict[str, str] = {}
    for key in keys:
        name = our_name(key)
        if _UNUSED.search(name):
            continue
        if name in sources:
            raise CheckpointError(
                f"the file holds {sources[name]!r} and {key!r}, both of which mean {name!r}; "
                "it mixes two checkpoints"
            )
        sources[name] = key
    return sources
