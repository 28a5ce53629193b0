"""Compare an examination that is killed, damaged or parallelised with an undisturbed one.

- killed with SIGKILL at random moments and restarted each time: the same bytes of arrays and
  values at the end, and no finished piece is computed twice
- a truncated piece, one with a flipped bit and a misplaced one: detected, computed again, reported
- a full disk and a read-only disk: a clear error, no damage, and the run can resume
- 1 and 4 workers, 1 and 2 jobs, batches of 7 and 64: the same numbers up to 1e-6
- a Ray cluster of two nodes, one of which is removed half way: the same numbers up to 1e-6

Exits with 1 if any of these fails.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

MODEL = "resnet20_cifar"
EXAMINE = (
    "examine", MODEL, "--untrained", "--images", "2048", "--batch", "64",
    "--probe", "fourier", "--probe", "variance", "--probe", "hessian:batches=6,k=2",
    "--probe", "landscape:points=5,max_images=32",
)  # fmt: skip


def main() -> None:
    """Print a line per proof."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="endurance-") as temporary:
        folder = Path(temporary)
        start = time.monotonic()
        examine(folder / "alone")
        alone = time.monotonic() - start
        print(f"undisturbed: {alone:.1f} s, {len(pieces(folder / 'alone'))} pieces")
        proofs = [
            killed(folder, alone, arguments.kills, arguments.seed),
            damaged(folder),
            refused(folder),
            *divided(folder),
            lost_node(folder),
        ]
    sys.exit(0 if all(proofs) else 1)


def command(out: Path, *more: str) -> list[str]:
    """The command line of the examination."""
    return [sys.executable, "-m", "retinoscope", *EXAMINE, "--out", str(out), *more]


def examine(out: Path, *more: str) -> str:
    """Run the examination to its end; returns its messages."""
    done = subprocess.run(command(out, *more), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(more)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stderr


def killed(folder: Path, alone: float, kills: int, seed: int) -> bool:
    """Kill it at random moments, from before the first import to after the last piece."""
    draw, out = random.Random(seed), folder / "killed"
    finished: dict[Path, tuple[int, int]] = {}
    redone, hits = 0, 0
    for _ in range(kills):
        process = subprocess.Popen(
            command(out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        # Starting up takes most of the time, so some kills wait for a new piece first.
        wait_for_more_pieces(out, len(finished), process, draw.choice((0.0, alone)))
        time.sleep(draw.uniform(0, 0.25 * alone / kills))
        hits += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        now = stamps(out)
        redone += sum(now.get(path) != stamp for path, stamp in finished.items())
        finished = now
    examine(out)
    now = stamps(out)
    redone += sum(now.get(path) != stamp for path, stamp in finished.items())
    same = contents(out) == contents(folder / "alone")
    print(
        f"killed {hits} of {kills} times while running, {len(finished)} pieces before the last "
        f"start: same bytes {said(same)}, finished pieces computed again: {redone}"
    )
    return same and not redone and hits == kills


def wait_for_more_pieces(
    out: Path, have: int, process: subprocess.Popen[bytes], most: float
) -> None:
    """Wait until there is one more piece, the process has ended, or time is up."""
    deadline = time.monotonic() + most
    while time.monotonic() < deadline and process.poll() is None:
        if len(pieces(out)) > have:
            return
        time.sleep(0.005)


def damaged(folder: Path) -> bool:
    """Damage three pieces at once, each in another way."""
    out = folder / "damaged"
    shutil.copytree(folder / "alone", out)
    first, second, third, fourth, *_ = pieces(out)
    first.write_bytes(first.read_bytes()[:-100])
    flipped = bytearray(second.read_bytes())
    flipped[len(flipped) // 2] ^= 4
    second.write_bytes(bytes(flipped))
    third.write_bytes(fourth.read_bytes())
    said_ = examine(out)
    noticed = said_.count("is damaged") == 2 and said_.count("is stale") == 1
    notes = [json.loads(path.read_text()) for path in out.rglob("*.note.json")]
    reported = sum(len(note["redone"]) for note in notes) == 3
    shown = (out / "report.html").read_text().count("repeated: ") >= 1
    same = contents(out) == contents(folder / "alone")
    print(
        f"truncated, flipped and stale pieces: detected {said(noticed)}, in the notes "
        f"{said(reported)}, in the report {said(shown)}, same bytes {said(same)}"
    )
    return noticed and reported and shown and same


def refused(folder: Path) -> bool:
    """Use a file system that is too small (64 kB), then large enough, then read-only."""
    disk = folder / "disk"
    disk.mkdir()
    if not mount(disk, "size=64k"):
        print("full and read-only disk: no file system can be mounted here; tests/run covers both")
        return True
    try:
        full = fails(disk / "run", "is full")
        leftovers = list(disk.rglob("*.unfinished"))
        mount(disk, "remount,size=64m")
        examine(disk / "run")
        same = contents(disk / "run") == contents(folder / "alone")
        mount(disk, "remount,ro")
        read_only = fails(disk / "run", "cannot be written to")
        still = contents(disk / "run") == contents(folder / "alone")
    finally:
        subprocess.run(["umount", str(disk)], check=False)
    print(
        f"full disk: clear error {said(full)}, leftovers {len(leftovers)}, same bytes once there "
        f"is space {said(same)}; read-only: clear error {said(read_only)}, nothing changed "
        f"{said(still)}"
    )
    return full and not leftovers and same and read_only and still


def mount(where: Path, options: str) -> bool:
    """Mount a file system in memory; returns whether that was allowed."""
    how = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(where)]
    try:
        return subprocess.run(how, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def fails(out: Path, says: str) -> bool:
    """Whether the examination ends with exit code 2 and an error that contains ``says``."""
    done = subprocess.run(command(out), capture_output=True, text=True, check=False)
    return done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


def divided(folder: Path) -> Iterator[bool]:
    """Run the same work with other workers, jobs and batches."""
    for name, more in (
        ("4 workers", ("--workers", "4")),
        ("2 jobs", ("--jobs", "2")),
        ("batches of 7", ("--batch", "7")),
    ):
        out = folder / name.replace(" ", "-")
        examine(out, *more)
        off = difference(folder / "alone", out)
        print(f"{name}: largest difference {off:.1e} {said(off <= 1e-6)}")
        yield off <= 1e-6


def lost_node(folder: Path) -> bool:
    """Run on two Ray nodes; the second is removed when half of the pieces are done."""
    try:
        from ray.cluster_utils import Cluster
    except ImportError:
        print("Ray is not installed: this proof needs pip install 'retinoscope[ray]'")
        return False
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    out = folder / "ray"
    process = subprocess.Popen(
        command(out, "--ray", cluster.address), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    total = len(pieces(folder / "alone"))
    while process.poll() is None and len(pieces(out)) < total // 2:
        time.sleep(0.02)
    then = len(pieces(out))
    cluster.remove_node(second, allow_graceful=False)
    _, errors = process.communicate()
    cluster.shutdown()
    if process.returncode:
        print(f"Ray ended with {process.returncode}: {errors.decode()[-1500:]}")
        return False
    off = difference(folder / "alone", out)
    half_way = 0 < then < total
    print(
        f"Ray, a node removed after {then} of {total} pieces: largest difference {off:.1e} "
        f"{said(off <= 1e-6 and half_way)}"
    )
    return off <= 1e-6 and half_way


def pieces(out: Path) -> list[Path]:
    """All finished pieces."""
    return sorted(out.rglob("*.piece"))


def stamps(out: Path) -> dict[Path, tuple[int, int]]:
    """Modification time and inode of each piece."""
    return {p: (s.st_mtime_ns, s.st_ino) for p in pieces(out) for s in [p.stat()]}


def contents(out: Path) -> dict[str, str]:
    """Hashes of arrays and values, without the notes, which contain times, and the command line."""
    kept = (p for p in out.rglob("*") if p.suffix in (".npz", ".json", ".piece"))
    return {
        str(p.relative_to(out)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in kept
        if not p.name.endswith((".note.json", "asked.json"))
    }


def difference(one: Path, other: Path) -> float:
    """The largest difference between two results, relative to values above 1."""
    worst = 0.0
    for path in one.rglob("*.npz"):
        with (
            np.load(path, allow_pickle=False) as a,
            np.load(other / path.relative_to(one), allow_pickle=False) as b,
        ):
            for name in a.files:
                gap = np.abs(a[name] - b[name]) / np.maximum(1, np.abs(a[name]))
                worst = max(worst, float(np.nanmax(gap, initial=0.0)))
                if not np.array_equal(np.isnan(a[name]), np.isnan(b[name])):
                    return float("inf")
    return worst


def said(holds: bool) -> str:
    """The outcome in one word."""
    return "yes" if holds else "NO"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
