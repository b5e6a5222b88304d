"""`python -m ottla.cli` is the command `ottla`."""

from ottla.cli.main import main

main()
