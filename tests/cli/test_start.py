"""Nobody waits for torch who only asks for help."""

import resource
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
def test_start_is_quick_and_without_torch(program):
    code = f"import sys; {program}; assert not {{'torch', 'numpy', 'timm'}} & set(sys.modules)"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Of the processor, since the machine may be busy with other things.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0
