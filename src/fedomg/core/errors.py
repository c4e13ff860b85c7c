"""The one exception for mistakes that a user can make and mend."""


class UserError(Exception):
    """Says in one line what is wrong, names the thing, and points to the way out.

    The command line prints the message without a traceback and exits with status 2.
    """
