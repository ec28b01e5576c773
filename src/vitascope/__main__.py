"""``python -m vitascope``."""

from vitascope.cli import main

main()
