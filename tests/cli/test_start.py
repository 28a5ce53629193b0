"""Nobody waits for torch who only asks for help."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "program",
    [
        "import retinoscope",
        "from retinoscope.cli.main import app; app(['--help'], standalone_mode=False)",
        "from retinoscope.cli.main import app; app(['examine', '--help'], standalone_mode=False)",
        "from retinoscope.cli.main import app; app(['list', 'probes'], standalone_mode=False)",
        "from retinoscope.cli.main import app; app(['list', 'probes', 'hessian'], "
        "standalone_mode=False)",
    ],
)
def test_start_is_without_torch(program):
    """Which alone takes seconds; the time itself depends on the machine."""
    code = f"import sys; {program}; assert not {{'torch', 'timm'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
