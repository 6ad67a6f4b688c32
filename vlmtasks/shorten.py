"""A value as it stands in a message: cut where it is long, and never an error of its own."""


def shorten(value: object, width: int = 80) -> str:
    """`repr` of at most `width` characters.

    >>> shorten([1, "a"]), shorten("x" * 100, width=10), shorten(10**5000)
    ("[1, 'a']", "'xxxxxx...", '<int of too many digits>')
    """
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        text = f"<{type(value).__name__} of too many digits>"
    return text if len(text) <= width else text[: width - 3] + "..."
