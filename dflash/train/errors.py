"""The one exception that the command line turns into a message and exit code 2."""


class TrainError(Exception):
    """A file, option or number that does not fit. The message names the file, the field, what was expected and found."""
