"""The one kind of exception that a user's mistake may raise, and those of others in a line."""


class UserError(ValueError):
    """A mistake in the input, told in one line: file, record, line, value and the way out.

    The command line prints the message without a traceback and exits with 2.
    """


def reason(error: Exception) -> str:
    """Return in a line what a library refused something for."""
    return " ".join(str(error.__cause__ or error).split())
