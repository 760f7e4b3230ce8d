"""The error of a user's mistake."""


class UserError(Exception):
    """Something the user can put right.

    The message is one sentence that says what is wrong and what to do; programs print it and end with exit code 1,
    without a traceback.
    """
