"""Run the code of two checkouts side by side: one process each, working in turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]


class Worker:
    """A process with the code of one checkout, which runs a task on request.

    ``program`` reads its argument as JSON from ``sys.argv[1]`` and, for each line of its standard
    input, prints a line of JSON: the seconds, then a value that must be the same for both.
    """

    def __init__(self, checkout: Path, program: str, argument: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, json.dumps(argument)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"},
        )

    def work(self) -> tuple[float, Any]:
        """Run the task once; returns its seconds and its value."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        if not (line := self.process.stdout.readline()):
            raise SystemExit("A process has died; see its error above.")
        seconds, answer = json.loads(line)
        return seconds, answer
