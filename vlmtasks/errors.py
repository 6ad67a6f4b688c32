"""Everything that vlmtasks raises on purpose.

VlmtasksError
├── InputError (ValueError)             an argument has a value that is not allowed
│   ├── ImageError                      a picture that cannot be read or used
│   │   └── MissingImageError (FileNotFoundError)   there is no such file
│   ├── PromptError                     a prompt that cannot be sent to the model
│   └── DatasetError                    a COCO, JSONL, VOC or YOLO file with a mistake in it
├── CheckpointError (ValueError)        a checkpoint folder that cannot be trusted or understood
│   └── MissingFileError (FileNotFoundError)   a file that the folder should hold
├── MaskCodecError (ValueError)         no mask codec, or codes it cannot decode
├── NumericsError (ArithmeticError)     the model computed NaN or infinity
└── MissingExtraError (ImportError)     an optional package is not installed

Every message says what was given, what is allowed and what to do next.
"""


class VlmtasksError(Exception):
    """Base of all errors of this package."""


class InputError(VlmtasksError, ValueError):
    """An argument has a value that is not allowed."""


class ImageError(InputError):
    """A picture that cannot be read or used."""


class MissingImageError(ImageError, FileNotFoundError):
    """A picture file that is not there."""


class PromptError(InputError):
    """A prompt that cannot be sent to the model."""


class DatasetError(InputError):
    """A data file (COCO, JSONL, VOC, YOLO) with a mistake in it."""


class CheckpointError(VlmtasksError, ValueError):
    """A checkpoint that cannot be trusted or understood."""


class MissingFileError(CheckpointError, FileNotFoundError):
    """A file that a checkpoint folder should hold is not there."""


class MaskCodecError(VlmtasksError, ValueError):
    """No mask codec is known, or codes cannot be decoded."""


class NumericsError(VlmtasksError, ArithmeticError):
    """The model computed NaN or infinity."""


class MissingExtraError(VlmtasksError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; run: pip install 'vlmtasks[{extra}]'")
        self._given = package, extra

    def __reduce__(self) -> tuple:
        return MissingExtraError, self._given  # as pickle passes it between processes
