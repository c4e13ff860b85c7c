"""Messages for names that nobody knows."""

import difflib
from collections.abc import Collection, Iterable

from fedomg.core.errors import UserError


def known(what: str, name: str, names: Collection[str]) -> str:
    """The name itself, where it is one of these."""
    if name not in names:
        raise UserError(unknown_name(what, name, names))
    return name


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """One line that names the nearest known name, capitals aside, or all of them where none is near."""
    known = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), lowered, n=1)
    return f'no {what} is called "{name}"; ' + (f'did you mean "{lowered[near[0]]}"?' if near else f"known are: {', '.join(known)}")
