"""The one exception for mistakes that a user can make and mend, and what else is theirs to mend."""


class UserError(Exception):
    """Says in one line what is wrong, names the thing, and points to the way out.

    The command line prints the message without a traceback and exits with status 2.
    """


def explained(error: BaseException) -> str | None:
    """What to tell the user of it in one line; None where the fault is not theirs."""
    if isinstance(error, UserError | OSError):
        return " ".join(str(error).split())
    if _is_out_of_memory(error):
        return f"there is not enough memory; try fewer examples, smaller images, a smaller model or batch ({' '.join(str(error).split())})"
    return None


def _is_out_of_memory(error: BaseException) -> bool:
    """Torch has no type of its own for memory that the processor's allocator does not get, only these words."""
    words = ("not enough memory", "can't allocate memory", "out of memory")
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(text in str(error) for text in words))
