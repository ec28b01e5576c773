"""The command line: parse, call, print."""

from vitascope.cli.app import main

__all__ = ["main"]
