"""Compare a training that is killed, damaged or distributed with an undisturbed one.

- killed with SIGKILL at random moments and restarted each time, alternately without and with a
  worker: the same bytes of snapshots and log at the end
- the newest checkpoint truncated, with a flipped bit in its weights, or with one in its log:
  detected, reported, and the checkpoint before leads to the same bytes
- two processes instead of one, by torchrun on the CPU: the same weights after 20 steps in float64
  for a network without batch norm; the difference with batch norm and with Mixup is printed
- one of two processes killed: all end within a minute and say why, and the same command resumes and
  ends with the same bytes as two undisturbed processes

Exits with 1 if any of these fails. The recipe includes everything that is random (RandAugment,
erasing, Mixup and CutMix, dropout, stochastic depth) and everything that has a state (AdamW, a
moving average of the weights, batch norms), as well as sharpness-aware minimisation and clipping.
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

from safetensors.torch import load_file

from endurance import said

MODEL = "micro_resnet:drop_rate=0.1"
SHORT = "micro:batch=32,scored=200,clip=0.5,ema=0.9,sam=0.05,smoothing=0.1,erasing=0.25,"
RANDAUGMENT = "randaugment=rand-m9-n2-mstd1.0"
RECIPE = (
    f"{SHORT}{RANDAUGMENT},mixup=0.8,cutmix=1.0,drop_path=0.1,"
    "epochs=3,warmup=1,fraction=0.01,snapshots=1"
)
TWENTY = f"{SHORT}{RANDAUGMENT},epochs=2,warmup=0,fraction=0.0064,precision=float64"
"""Twenty steps of 32 images, without anything that each process draws separately."""
SHARED_BAR = 1e-5
"""Tolerated difference of a weight: float64 sums in another order, 20 steps of AdamW."""
MINUTE = 60.0


def main() -> None:
    """Print a line per proof."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="resuming-") as temporary:
        folder = Path(temporary)
        alone = folder / "alone"
        train(alone)
        seconds = time.monotonic() - begun
        print(f"undisturbed: {seconds:.1f} s, {steps(alone)} steps", flush=True)
        times = map(json.loads, (alone / "times.jsonl").read_text().splitlines())
        starting = seconds - sum(epoch["seconds"] for epoch in times)
        proofs = [
            killed(folder, starting, arguments.kills, random.Random(arguments.seed)),
            *damaged(folder),
            *shared(folder),
            lost(folder),
        ]
    print(f"{sum(proofs)} of {len(proofs)} proofs hold, {time.monotonic() - begun:.0f} s")
    sys.exit(0 if all(proofs) else 1)


def start(
    out: Path, *more: str, recipe: str = RECIPE, model: str = MODEL, processes: int = 1
) -> subprocess.Popen[bytes]:
    """Start the training as a process, which writes its messages next to its folder."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [
        sys.executable, *(launcher if processes > 1 else ()), "-m", "retinoscope", "train", recipe,
        "--model", model, "--data", "cues", "--device", "cpu", "--checkpoint-every", "0.2",
        "--workers", "0", "--out", str(out), *more,
    ]  # fmt: skip
    with words(out).open("w") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)


def train(out: Path, recipe: str = RECIPE, model: str = MODEL, processes: int = 1) -> str:
    """Run the training to its end; returns its messages."""
    return finish(start(out, recipe=recipe, model=model, processes=processes), out)


def finish(process: subprocess.Popen[bytes], out: Path) -> str:
    """Wait for the end of a training; returns its messages."""
    code, text = process.wait(), words(out).read_text()
    if code:
        raise SystemExit(f"{out.name} ended with {code}: {text[-2000:]}")
    return text


def words(out: Path) -> Path:
    """The file with the messages of a training."""
    return out.with_name(f"{out.name}.txt")


def killed(folder: Path, starting: float, kills: int, draw: random.Random) -> bool:
    """Kill it at random moments, from before the first import to the last epoch."""
    out, total = folder / "killed", steps(folder / "alone")
    # A third of the kills is at the start, which takes much of the time; the others during steps.
    targets = [0.0, 0.0, *sorted(draw.uniform(0, 0.9 * total) for _ in range(kills - 2))]
    hits, writing, fresh = 0, 0, 0
    for place, target in enumerate(targets):
        process = start(out, "--workers", str(place % 2))
        if place % 3 == 0:
            time.sleep(draw.uniform(0, 0.6 * starting))  # ``starting`` includes the exit
        else:
            # Wait for a new checkpoint first, or all kills would be at the start.
            step = min(max(target, reached(out) + 1), 0.9 * total)
            wait(process, out, step, half_written=place % 3 == 2)
            time.sleep(draw.uniform(0, 0.2) if place % 3 == 1 else 0)
        hits += process.poll() is None
        process.kill()
        if process.wait() != -signal.SIGKILL:
            print(f"start {place + 1} ended by itself: {words(out).read_text()[-1000:]}")
        writing += is_writing(out)
        fresh += not checkpoints(out)
    train(out)
    same = contents(out) == contents(folder / "alone")
    print(
        f"killed {hits} of {kills} times while running ({fresh} before the first checkpoint, "
        f"{writing} while a file was being written): same bytes {said(same)}",
        flush=True,
    )
    return same and hits == kills


def wait(
    process: subprocess.Popen[bytes], out: Path, step: float, half_written: bool = False
) -> None:
    """Wait for a checkpoint of that step, or one being written, or the end of the process."""
    while process.poll() is None:
        if reached(out) >= step and (is_writing(out) or not half_written):
            return
        time.sleep(0.0002 if half_written else 0.005)


def damaged(folder: Path) -> Iterator[bool]:
    """Damage the newest of two checkpoints in three ways, each in a copy of the folder."""
    half = folder / "half"
    process = start(half)
    wait(process, half, steps(folder / "alone") / 2)
    process.kill()
    process.wait()
    going: dict[str, tuple[Path, str, subprocess.Popen[bytes]]] = {}
    for name, harm in (
        ("truncated", lambda content: content[:-1000]),
        ("flipped bit in the weights", lambda content: flipped(content, len(content) * 3 // 4)),
        ("flipped bit in its log", in_log),
    ):
        out = folder / name.replace(" ", "-")
        shutil.copytree(half, out)
        newest = checkpoints(out)[-1]
        newest.write_bytes(harm(newest.read_bytes()))
        going[name] = out, newest.name, start(out)
    for name, (out, newest, process) in going.items():
        text = " ".join(finish(process, out).split())
        noticed = f"{newest}' is damaged" in text and "The one before is used" in text
        same = contents(out) == contents(folder / "alone")
        print(
            f"newest checkpoint, {name}: detected {said(noticed)}, same bytes {said(same)}",
            flush=True,
        )
        yield noticed and same


def flipped(content: bytes, place: int) -> bytes:
    """The same content with one bit flipped."""
    changed = bytearray(content)
    changed[place] ^= 1
    return bytes(changed)


def in_log(content: bytes) -> bytes:
    """The content with another digit in an accuracy, which is still valid JSON."""
    mark = b'\\"accuracy\\": 0.'
    return flipped(content, content.index(mark) + len(mark))


def shared(folder: Path) -> Iterator[bool]:
    """Compare two processes with one at the same batch size."""
    for name, model, more, why in (
        ("no batch norm", "micro_vit", "", ""),
        ("batch norm", "micro_resnet", "", "each process's batch norms see half of the batch"),
        ("Mixup", "micro_vit", ",mixup=0.8", "each process draws its own share and mixes its half"),
    ):
        one, two = (folder / f"{name} of {count}".replace(" ", "-") for count in (1, 2))
        process = start(one, recipe=TWENTY + more, model=model)
        train(two, TWENTY + more, model, processes=2)
        finish(process, one)
        end = one / "snapshots" / "end.safetensors"
        off = difference(end, two / "snapshots" / end.name)
        moved = difference(end.with_stem("init"), end)
        holds = off <= SHARED_BAR and steps(two) == 20
        verdict = f"no verdict, since {why}" if why else f"within {SHARED_BAR:.0e} {said(holds)}"
        print(
            f"2 processes, {name}, {steps(two)} steps: weights differ by at most {off:.1e}, after "
            f"moving by {moved:.1e}: {verdict}",
            flush=True,
        )
        if not why:
            yield holds


def lost(folder: Path) -> bool:
    """Kill the second of two processes, then the first, then let both finish."""
    train(folder / "two", processes=2)
    out, total = folder / "lost", steps(folder / "two")
    holds = True
    for part, rank in enumerate((1, 0), start=1):
        process = start(out, processes=2)
        wait(process, out, total * part / 3)
        # torchrun starts them in the order of their ranks.
        team = sorted(pid for pid, parent in parents().items() if parent == process.pid)
        os.kill(team[rank], signal.SIGKILL)
        begun = time.monotonic()
        try:
            code = process.wait(MINUTE)
        except subprocess.TimeoutExpired:
            code = None
            process.kill()
        seconds = time.monotonic() - begun
        left = parents().keys() & set(team)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        clear = "Start the same command again" in " ".join(words(out).read_text().split())
        print(
            f"process {rank} of 2 killed at step {reached(out)}: ended with {code} after "
            f"{seconds:.1f} s, {len(left)} left over, message says what to do {said(clear)}",
            flush=True,
        )
        holds = holds and code not in (None, 0) and not left and clear
    train(out, processes=2)
    same = contents(out) == contents(folder / "two")
    print(f"2 processes, killed and resumed: same bytes {said(same)}", flush=True)
    return holds and same


def parents() -> dict[int, int]:
    """All processes of this machine, each with its parent."""
    command = ["ps", "-A", "-o", "pid=,ppid="]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return dict(zip(map(int, listed[::2]), map(int, listed[1::2]), strict=True))


def checkpoints(out: Path) -> list[Path]:
    """All checkpoints, the newest last."""
    return sorted((out / "checkpoints").glob("step-*.safetensors"))


def reached(out: Path) -> int:
    """The step of the newest checkpoint; -1 before the first line of the log."""
    there = checkpoints(out)
    return int(there[-1].stem.removeprefix("step-")) if there else (out / "log.jsonl").exists() - 1


def is_writing(out: Path) -> bool:
    """Whether a file is being written."""
    return any((out / "checkpoints").glob(".*")) or any((out / "snapshots").glob(".*"))


def steps(out: Path) -> int:
    """The total number of steps of the training."""
    return json.loads((out / "training.json").read_text())["steps"]["total"]


def contents(out: Path) -> dict[str, str]:
    """Hashes of snapshots and log: everything in the folder except times and versions."""
    kept = [out / "log.jsonl", *sorted((out / "snapshots").iterdir())]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}


def difference(one: Path, other: Path) -> float:
    """The largest difference between the weights of two files."""
    a, b = load_file(one), load_file(other)
    # Without the batch counts of batch norms, which are not weights.
    names = [name for name in a if a[name].is_floating_point()]
    return max(float((a[name] - b[name]).double().abs().max()) for name in names)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
