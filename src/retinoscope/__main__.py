"""``python -m retinoscope``: the same as the command ``retinoscope``."""

from retinoscope.cli.main import main

main()
