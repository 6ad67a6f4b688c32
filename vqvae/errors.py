"""Errors of the mask codec; catch ``CodecError`` for all of them.

CodecError
├── CodecWeightsMissing   (FileNotFoundError) no such weights file
├── CodecWeightsInvalid   (ValueError) the file does not hold this network
└── CodecInputError       (ValueError) wrong codes or masks
"""


class CodecError(Exception):
    """Something is wrong with the mask codec's weights or input."""


class CodecWeightsMissing(CodecError, FileNotFoundError):
    """The weights file is not there."""


class CodecWeightsInvalid(CodecError, ValueError):
    """The weights file is damaged, of an unknown kind, or of another network."""


class CodecInputError(CodecError, ValueError):
    """Codes or masks of a wrong shape, kind or range."""
