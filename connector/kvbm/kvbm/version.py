"""The version of the distribution. The build reads it too."""

__version__ = "0.1.0"
