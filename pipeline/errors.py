"""The one kind of exception that a user's mistake may raise."""


class UserError(ValueError):
    """A mistake in the input, told in one line: file, record, line, value and the way out.

    The command line prints the message without a traceback and exits with 2.
    """
