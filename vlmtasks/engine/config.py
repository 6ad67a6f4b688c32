"""Model configurations. Field names are the keys of a Hugging Face `config.json`.

Imports no tensor library, so that a checkpoint can be looked at without loading one.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from vlmtasks.errors import CheckpointError

# A damaged file must not make us build modules for hours, or tensors whose size overflows.
MAX_SIZE = 10**6
MAX_NUMBER = {
    "num_hidden_layers": 1000,
    "image_size": 10**5,
    "vocab_size": 10**9,
    "max_position_embeddings": 10**9,
    "sliding_window": 10**9,
}
MAX_FLOAT = 1e12
ACTIVATIONS = ("gelu_pytorch_tanh", "gelu")


@dataclass(frozen=True)
class SiglipVisionConfig:
    """SigLIP vision tower without pooling head. Defaults: So400m/14 at 224 px."""

    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_hidden_layers: int = 27
    num_attention_heads: int = 16
    num_channels: int = 3
    image_size: int = 224  # side of the square model input, pixels
    patch_size: int = 14
    layer_norm_eps: float = 1e-6
    hidden_act: str = "gelu_pytorch_tanh"

    def __post_init__(self) -> None:
        _check_positive(self, "vision_config")
        _check_activation(self.hidden_act, "vision_config.hidden_act")
        if self.hidden_size % self.num_attention_heads:
            raise CheckpointError(
                f"vision_config: hidden_size {self.hidden_size} is no multiple of "
                f"num_attention_heads {self.num_attention_heads}"
            )
        if self.num_channels != 3:
            raise CheckpointError(
                f"vision_config: num_channels is {self.num_channels}; pictures are RGB"
            )
        if self.image_size < self.patch_size:
            raise CheckpointError(
                f"vision_config: image_size {self.image_size} is smaller than "
                f"patch_size {self.patch_size}"
            )

    @property
    def num_image_tokens(self) -> int:
        return (self.image_size // self.patch_size) ** 2


@dataclass(frozen=True)
class GemmaConfig:
    """Gemma 1 or Gemma 2 decoder. Defaults: the Gemma 1 decoder of PaliGemma 3B."""

    model_type: str = "gemma"  # "gemma" | "gemma2"
    vocab_size: int = 257216  # rows of the embedding table
    hidden_size: int = 2048
    intermediate_size: int = 16384
    num_hidden_layers: int = 18
    num_attention_heads: int = 8
    num_key_value_heads: int = 1
    head_dim: int = 256  # never hidden_size / num_attention_heads: they differ in Gemma 2
    hidden_act: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 8192
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    # Gemma 2 only; None switches each of them off
    query_pre_attn_scalar: float | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    sliding_window: int | None = None

    def __post_init__(self) -> None:
        _check_positive(self, "text_config")
        _check_activation(self.hidden_act, "text_config.hidden_act")
        if self.model_type not in ("gemma", "gemma2"):
            raise CheckpointError(
                f"text_config.model_type is {self.model_type!r}; "
                "supported are 'gemma' (PaliGemma 1) and 'gemma2' (PaliGemma 2)"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise CheckpointError(
                f"text_config: num_attention_heads {self.num_attention_heads} is no multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise CheckpointError(f"text_config: head_dim {self.head_dim} must be even for RoPE")

    @property
    def query_scale(self) -> float:
        scalar = self.query_pre_attn_scalar
        return (self.head_dim if scalar is None else scalar) ** -0.5

    def slides(self, layer: int) -> bool:
        """Whether this layer sees only `sliding_window` positions (Gemma 2: even layers)."""
        return self.sliding_window is not None and layer % 2 == 0


# Sizes that a config.json must say itself: not all of them show in the shapes of the weights.
REQUIRED: dict[str, tuple[str, ...]] = {
    "vision_config": (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "patch_size",
    ),
    "text_config": (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
    ),
}

# What transformers assumes where a Gemma 2 text_config leaves a key out.
GEMMA2_DEFAULTS: dict[str, Any] = {
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "sliding_window": 4096,
}


@dataclass(frozen=True)
class PaliGemmaConfig:
    """A whole PaliGemma (1 or 2)."""

    vision_config: SiglipVisionConfig
    text_config: GemmaConfig
    image_token_index: int = 257152
    bos_token_id: int = 2
    eos_token_id: int = 1
    pad_token_id: int = 0
    tie_word_embeddings: bool = True  # False: the checkpoint must hold an lm_head of its own

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "PaliGemmaConfig":
        """Reads the content of a `config.json`.

        Raises CheckpointError naming the key that is missing, of a wrong type or unsupported.
        """
        if not isinstance(data, Mapping):
            raise CheckpointError(f"config.json must hold an object, not {type(data).__name__}")
        model_type = data.get("model_type")
        if model_type != "paligemma":
            raise CheckpointError(
                f"config.json: model_type is {model_type!r}; this engine runs 'paligemma' "
                "(PaliGemma 1 and 2)"
            )
        config = cls(
            vision_config=_from_dict(SiglipVisionConfig, _section(data, "vision_config"), {}),
            text_config=_text_config(_section(data, "text_config")),
            image_token_index=_image_token(data),
            tie_word_embeddings=data.get("tie_word_embeddings") is not False,
        )
        rows = config.text_config.vocab_size
        if not 0 <= config.image_token_index < rows:
            raise CheckpointError(
                f"image_token_index {config.image_token_index} is outside the embedding table "
                f"of text_config.vocab_size {rows} rows"
            )
        return config

    def to_dict(self) -> dict[str, Any]:
        """The content of a `config.json` that `from_dict` and transformers both read."""
        text = asdict(self.text_config)
        if self.text_config.model_type == "gemma2":
            # None is written: transformers takes its own defaults where a key is absent
            text["hidden_activation"] = text.pop("hidden_act")
            if self.text_config.query_pre_attn_scalar is None:
                text["query_pre_attn_scalar"] = self.text_config.head_dim
        else:
            text = {key: value for key, value in text.items() if value is not None}
        return {
            "architectures": ["PaliGemmaForConditionalGeneration"],
            "model_type": "paligemma",
            "image_token_index": self.image_token_index,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": self.eos_token_id,
            "pad_token_id": self.pad_token_id,
            "hidden_size": self.text_config.hidden_size,
            "projection_dim": self.text_config.hidden_size,
            "tie_word_embeddings": self.tie_word_embeddings,
            "vocab_size": self.text_config.vocab_size,
            "text_config": text,
            "vision_config": {
                **asdict(self.vision_config),
                "model_type": "siglip_vision_model",
                "projection_dim": self.text_config.hidden_size,
                "vision_use_head": False,
            },
        }


def tiny_config(model_type: str = "gemma") -> PaliGemmaConfig:
    """A model small enough for tests: 16 image tokens of 32 px, vocabulary 1000."""
    gemma2 = model_type == "gemma2"
    return PaliGemmaConfig(
        vision_config=SiglipVisionConfig(
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=32,
            patch_size=8,
        ),
        text_config=GemmaConfig(
            model_type=model_type,
            vocab_size=1000,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=8,
            num_key_value_heads=2 if gemma2 else 1,
            head_dim=32,
            max_position_embeddings=512,
            query_pre_attn_scalar=24 if gemma2 else None,
            attn_logit_softcapping=50.0 if gemma2 else None,
            final_logit_softcapping=30.0 if gemma2 else None,
            sliding_window=20 if gemma2 else None,
        ),
        image_token_index=999,
    )


def _text_config(data: Mapping[str, Any]) -> GemmaConfig:
    data = dict(data)
    if data.get("model_type", "gemma") == "gemma2":
        defaults = GEMMA2_DEFAULTS
        data["hidden_act"] = data.get("hidden_activation") or "gelu_pytorch_tanh"
        _check_layer_types(data.get("layer_types"), data.get("num_hidden_layers"))
    else:
        defaults = {}
        # Gemma 1 files say "gelu" but mean the tanh form; transformers corrects it too.
        if data.get("hidden_act", "gelu") == "gelu":
            data["hidden_act"] = "gelu_pytorch_tanh"
        for key in ("query_pre_attn_scalar", "attn_logit_softcapping", "sliding_window"):
            data.pop(key, None)
    if data.get("attention_bias"):
        raise CheckpointError("text_config.attention_bias is true; Gemma has no attention biases")
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise CheckpointError(f"text_config.rope_parameters must be an object, not {rope!r}")
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise CheckpointError(f"text_config: only default RoPE is supported, not {dict(rope)!r}")
    if "rope_theta" in rope:
        data["rope_theta"] = rope["rope_theta"]
    return _from_dict(GemmaConfig, data, defaults)


def _from_dict(kind: type, data: Mapping[str, Any], defaults: Mapping[str, Any]) -> Any:
    """Takes the known keys; transformers writes many others, which say nothing about the model."""
    values = {**defaults, **data}
    section = "vision_config" if kind is SiglipVisionConfig else "text_config"
    missing = [key for key in REQUIRED[section] if key not in values]
    if missing:
        raise CheckpointError(f"config.json: {section} lacks {', '.join(missing)}")
    known: dict[str, Any] = {}
    for field in fields(kind):
        if field.name not in values:
            continue
        known[field.name] = _checked(values[field.name], field.type, f"{section}.{field.name}")
    return kind(**known)


def _checked(value: Any, annotation: Any, name: str) -> Any:
    if value is None and annotation in (float | None, int | None):
        return None
    if annotation is str:
        allowed: tuple[type, ...] = (str,)
    elif annotation in (int, int | None):
        allowed = (int,)
    else:
        allowed = (int, float)
    if isinstance(value, bool) or not isinstance(value, allowed):
        raise CheckpointError(
            f"{name} must be {' or '.join(t.__name__ for t in allowed)}, not {value!r}"
        )
    return value


def _section(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = data.get(name)
    if not isinstance(section, Mapping):
        raise CheckpointError(f"config.json: {name} must be an object, not {section!r}")
    return section


def _image_token(data: Mapping[str, Any]) -> int:
    value = data.get("image_token_index", data.get("image_token_id"))
    if value is None:
        raise CheckpointError("config.json lacks image_token_index, the id of <image>")
    return _checked(value, int, "image_token_index")


def _check_layer_types(layer_types: Any, layers: Any) -> None:
    if layer_types is None:
        return
    usual = ("sliding_attention", "full_attention")
    alternates = isinstance(layer_types, list) and all(
        kind == usual[index % 2] for index, kind in enumerate(layer_types)
    )
    if not alternates or len(layer_types) != layers:
        raise CheckpointError(
            f"text_config.layer_types must alternate {usual[0]!r}, {usual[1]!r} over "
            f"{layers!r} layers as Gemma 2 does, not {layer_types!r}"
        )


def _check_positive(config: Any, section: str) -> None:
    for field in fields(config):
        value = getattr(config, field.name)
        if not isinstance(value, (int, float)):
            continue
        is_count = field.type in (int, int | None)
        most = MAX_NUMBER.get(field.name, MAX_SIZE) if is_count else MAX_FLOAT
        if not 0 < value <= most:
            raise CheckpointError(
                f"{section}.{field.name} must be a positive number up to {most:.0f}, not "
                f"{value!r:.80}"
            )


def _check_activation(name: str, where: str) -> None:
    if name not in ACTIVATIONS:
        raise CheckpointError(f"{where} is {name!r}; supported are {', '.join(ACTIVATIONS)}")
