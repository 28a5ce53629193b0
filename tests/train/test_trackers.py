import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from retinoscope.train.listener import Started
from retinoscope.train.trackers import TRACKERS, TrackerMissing, UnknownTracker, get_tracker

RECIPE = {"lr": 0.1, "milestones": [1, 2], "augmentation": {"mixup": 0.8}}
FLAT = {"lr": 0.1, "milestones": [1, 2], "augmentation.mixup": 0.8}
VARIABLES = ("WANDB_MODE", "WANDB_API_KEY", "WANDB_PROJECT", "WANDB_NAME", "WANDB_DIR",
             "WANDB_RUN_ID", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME")  # fmt: skip


def row(epoch):
    """Ten steps an epoch; before the first there is no training loss."""
    first = {"epoch": epoch, "step": 10 * epoch, "lr": 0.1 * epoch}
    return first | {"nll_train": 2.0 / epoch if epoch else None, "accuracy": 0.25 * epoch}


def numbers(epoch):
    return {name: v for name, v in row(epoch).items() if v is not None and name != "step"}


def train(tracker, folder, done, until, epochs=4):
    """What a training tells: the epochs that were there, then the others."""
    folder.mkdir(exist_ok=True)
    tracker.begin(
        Started("micro", "net", "cues", folder, 10 * epochs, 10, done, epochs, 100, RECIPE)
    )
    for epoch in range(until + 1):
        for step in range(max(done, 10 * epoch - 10), 10 * epoch):
            tracker.step(step + 1)
        tracker.epoch(row(epoch))
    tracker.say("nothing of this")
    tracker.end()


class Wandb(ModuleType):
    """Runs by their id; those of a server go on, those offline are a new file each."""

    def __init__(self):
        super().__init__("wandb")
        self.inits, self.files, self.server, self.fails = [], [], {}, 0

    def init(self, **options):
        if self.fails:
            self.fails -= 1
            raise ConnectionError("no network")
        self.inits.append(options)
        online = options.get("resume") == "allow"
        resumed = online and options["id"] in self.server
        history = self.server.setdefault(options["id"], {}) if online else {}
        file = SimpleNamespace(history=history, log=None, finished=False, resumed=resumed)
        file.starting_step = max(history, default=-1) + 1

        def log(values, step, commit):
            if self.fails:
                self.fails -= 1
                raise ConnectionError("no network")
            assert commit
            assert step not in history
            history[step] = values

        file.log, file.finish = log, lambda: setattr(file, "finished", True)
        self.files.append(file)
        return file


class Mlflow(ModuleType):
    """Stores by their address, each with experiments and runs."""

    def __init__(self):
        super().__init__("mlflow")
        self.stores = {}
        self.MlflowClient = self.client
        self.entities = ModuleType("mlflow.entities")
        self.entities.Param = lambda key, value: (key, value)
        self.entities.Metric = lambda key, value, timestamp, step: (key, value, step)

    def client(self, tracking_uri):
        store = self.stores.setdefault(
            tracking_uri, SimpleNamespace(experiments={}, artifacts=[], runs={})
        )
        client = SimpleNamespace()

        def create_experiment(name, artifact_location):
            store.experiments[name] = SimpleNamespace(experiment_id=str(len(store.experiments) + 1))
            store.artifacts.append(artifact_location)
            return store.experiments[name].experiment_id

        def create_run(experiment_id, run_name):
            run = SimpleNamespace(
                experiment=experiment_id, name=run_name, status="RUNNING", params=[], metrics=[]
            )
            run_id = f"run{len(store.runs)}"
            store.runs[run_id] = run
            return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

        def log_batch(run_id, metrics=(), params=()):
            store.runs[run_id].metrics += metrics
            store.runs[run_id].params += params

        def set_status(run_id, status):
            store.runs[run_id].status = status

        client.get_experiment_by_name = store.experiments.get
        client.create_experiment, client.create_run = create_experiment, create_run
        client.log_batch = log_batch
        client.set_terminated = client.update_run = set_status
        return client


class Writers(ModuleType):
    """What TensorBoard's writers were told, over all processes."""

    def __init__(self):
        super().__init__("torch.utils.tensorboard")
        self.opened, self.scalars, self.texts, self.flushed, self.closed = [], [], [], 0, 0

    def SummaryWriter(self, log_dir, purge_step):
        self.opened.append((log_dir, purge_step))
        if purge_step is not None:
            self.scalars = [each for each in self.scalars if each[2] < purge_step]
        return self

    def add_scalar(self, name, value, global_step):
        self.scalars.append((name, value, global_step))

    def add_text(self, name, text, global_step):
        self.texts.append((name, text, global_step))

    def flush(self):
        self.flushed = len(self.scalars)

    def close(self):
        self.closed += 1


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def wandb(monkeypatch):
    fake = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


@pytest.fixture
def mlflow(monkeypatch):
    fake = Mlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.entities", fake.entities)
    return fake


@pytest.fixture
def writers(monkeypatch):
    fake = Writers()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    return fake


def expected(epochs):
    return [(name, v, 10 * epoch) for epoch in epochs for name, v in numbers(epoch).items()]


def test_wandb_is_offline_in_the_folder(wandb, tmp_path):
    train(get_tracker("wandb"), tmp_path / "my run", 0, 4)
    (options,) = wandb.inits
    assert options["mode"] == "offline"
    assert options["dir"] == str(tmp_path / "my run")
    assert (options["project"], options["name"]) == ("retinoscope", "my run")
    assert options["id"].startswith("my-run-")
    assert options["config"] == FLAT
    assert wandb.files[0].history == {10 * epoch: numbers(epoch) for epoch in range(5)}
    assert wandb.files[0].finished


def test_an_offline_wandb_run_that_goes_on_is_whole(wandb, tmp_path):
    """A second file of the same id takes the place of the first when both are uploaded."""
    train(get_tracker("wandb"), tmp_path, 0, 2)
    train(get_tracker("wandb"), tmp_path, 20, 4)
    first, second = wandb.inits
    assert first["id"] == second["id"]
    assert "resume" not in second
    assert wandb.files[1].history == {10 * epoch: numbers(epoch) for epoch in range(5)}


@pytest.mark.parametrize("variable", [("WANDB_API_KEY", "x"), ("WANDB_MODE", "online")])
def test_an_online_wandb_run_goes_on(wandb, tmp_path, monkeypatch, variable):
    """The fake refuses a step that is there already."""
    monkeypatch.setenv(*variable)
    train(get_tracker("wandb"), tmp_path, 0, 2)
    train(get_tracker("wandb"), tmp_path, 20, 4)
    assert [options["resume"] for options in wandb.inits] == ["allow", "allow"]
    assert wandb.inits[0].get("mode") == (None if variable[0] == "WANDB_MODE" else "online")
    (history,) = wandb.server.values()
    assert history == {10 * epoch: numbers(epoch) for epoch in range(5)}


def test_wandb_obeys_the_environment(wandb, tmp_path, monkeypatch):
    for variable in ("WANDB_PROJECT", "WANDB_NAME", "WANDB_DIR", "WANDB_RUN_ID"):
        monkeypatch.setenv(variable, "theirs")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    train(get_tracker("wandb"), tmp_path, 0, 1)
    assert wandb.inits[0] == {"id": "theirs", "config": FLAT, "settings": {"console": "off"}}


def test_mlflow_is_a_database_in_the_folder(mlflow, tmp_path):
    train(get_tracker("mlflow"), tmp_path / "a", 0, 4)
    ((address, store),) = mlflow.stores.items()
    assert address == f"sqlite:///{tmp_path}/a/mlruns/mlflow.db"
    assert (tmp_path / "a/mlruns").is_dir()
    assert store.artifacts == [(tmp_path / "a/mlruns/artifacts").as_uri()]
    assert list(store.experiments) == ["retinoscope"]
    (run,) = store.runs.values()
    assert (run.name, run.experiment, run.status) == ("a", "1", "FINISHED")
    assert run.params == [(name, str(value)) for name, value in FLAT.items()]
    assert run.metrics == expected(range(5))


def test_an_mlflow_run_goes_on(mlflow, tmp_path):
    train(get_tracker("mlflow"), tmp_path, 0, 2)
    (store,) = mlflow.stores.values()
    (run,) = store.runs.values()
    assert run.status == "KILLED"
    tracker = get_tracker("mlflow")
    tracker.begin(Started("micro", "net", "cues", tmp_path, 40, 10, 20, 4, 100, RECIPE))
    assert run.status == "RUNNING"
    train(tracker, tmp_path, 20, 4)
    assert list(store.runs.values()) == [run]
    assert run.status == "FINISHED"
    assert len(run.params) == len(FLAT)
    assert run.metrics == expected(range(5))


def test_mlflow_obeys_the_environment_and_keeps_no_password(mlflow, tmp_path, monkeypatch):
    """The run of another store is not gone on with: there it gets all rows."""
    train(get_tracker("mlflow"), tmp_path, 0, 1)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@host/x")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    train(get_tracker("mlflow"), tmp_path, 10, 2)
    train(get_tracker("mlflow"), tmp_path, 20, 4)
    store = mlflow.stores["https://me:secret@host/x"]
    assert list(store.experiments) == ["mine"]
    assert store.artifacts == [None]
    (run,) = store.runs.values()
    assert run.metrics == expected(range(5))
    assert "secret" not in (tmp_path / "mlruns/retinoscope.json").read_text()


def test_tensorboard_writes_scalars_and_the_recipe(writers, tmp_path):
    train(get_tracker("tensorboard"), tmp_path, 0, 4)
    assert writers.opened == [(str(tmp_path / "tensorboard"), None)]
    assert writers.scalars == expected(range(5))
    assert writers.flushed == len(writers.scalars)
    ((name, text, step),) = writers.texts
    assert (name, step) == ("recipe", 0)
    assert "| augmentation.mixup | 0.8 |" in text.splitlines()
    assert writers.closed == 1


def test_tensorboard_hides_what_is_done_again(writers, tmp_path):
    """Killed after the row of epoch 3, with a checkpoint of epoch 2."""
    train(get_tracker("tensorboard"), tmp_path, 0, 3)
    train(get_tracker("tensorboard"), tmp_path, 20, 4)
    assert [purge for _, purge in writers.opened] == [None, 21]
    assert writers.scalars == expected(range(5))
    assert len(writers.texts) == 1


def test_a_tracker_that_comes_later_gets_all_rows(writers, tmp_path):
    train(get_tracker("tensorboard"), tmp_path, 20, 4)
    assert writers.opened[0][1] is None
    assert writers.scalars == expected(range(5))


def test_rows_of_a_process_without_the_tracker_are_made_up(mlflow, tmp_path):
    train(get_tracker("mlflow"), tmp_path, 0, 1)
    train(get_tracker("mlflow"), tmp_path, 30, 4)
    ((_, store),) = mlflow.stores.items()
    assert store.runs["run0"].metrics == expected(range(5))


def test_real_event_files(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(get_tracker("tensorboard"), tmp_path, 0, 3)
    train(get_tracker("tensorboard"), tmp_path, 20, 4)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    tags = events.Tags()["scalars"]
    found = [(tag, e.value, e.step) for tag in tags for e in events.Scalars(tag)]
    # Scalars are kept in float32.
    want = [(tag, pytest.approx(v, rel=1e-6), step) for tag, v, step in expected(range(5))]
    assert sorted(found, key=lambda e: (e[0], e[2])) == sorted(want, key=lambda e: (e[0], e[2]))
    (text,) = events.Tensors("recipe/text_summary")
    assert "augmentation.mixup" in text.tensor_proto.string_val[0].decode()


def test_a_failure_is_said_once_and_rows_wait(wandb, tmp_path):
    said = []
    wandb.fails = 2
    train(get_tracker("wandb", said.append), tmp_path, 0, 4)
    assert said == [
        "The tracker wandb failed: no network. The training goes on, and log.jsonl holds every row."
    ]
    assert wandb.files[0].history == {10 * epoch: numbers(epoch) for epoch in range(5)}
    assert wandb.files[0].finished


def test_a_tracker_that_keeps_failing_is_left_alone(wandb, tmp_path):
    said = []
    wandb.fails = 100
    train(get_tracker("wandb", said.append), tmp_path, 0, 4)
    assert len(said) == 1
    assert wandb.fails == 97
    # What it missed is made up for by the next process.
    wandb.fails = 0
    train(get_tracker("wandb", said.append), tmp_path, 40, 4)
    assert wandb.files[0].history == {10 * epoch: numbers(epoch) for epoch in range(5)}


def test_a_failure_is_a_warning_if_nobody_is_named(wandb, tmp_path):
    wandb.fails = 1
    with pytest.warns(UserWarning, match="The tracker wandb failed: no network"):
        train(get_tracker("wandb"), tmp_path, 0, 1)


def test_a_damaged_note_begins_a_new_run(mlflow, tmp_path):
    train(get_tracker("mlflow"), tmp_path, 0, 1)
    note = tmp_path / "mlruns/retinoscope.json"
    assert json.loads(note.read_text())["step"] == 10
    note.write_text("{")
    train(get_tracker("mlflow"), tmp_path, 10, 2)
    (store,) = mlflow.stores.values()
    assert store.runs["run1"].metrics == expected(range(3))


def test_end_without_a_beginning(wandb):
    get_tracker("wandb").end()
    assert not wandb.inits


def test_unknown():
    with pytest.raises(UnknownTracker, match=r"no tracker 'wandbb'\. Did you mean 'wandb'\?"):
        get_tracker("wandbb")
    with pytest.raises(UnknownTracker, match="There are: tensorboard, wandb, mlflow"):
        get_tracker("x")


@pytest.mark.parametrize("name", TRACKERS)
def test_missing(name, monkeypatch):
    monkeypatch.setitem(sys.modules, TRACKERS[name].module, None)
    with pytest.raises(TrackerMissing, match=rf"pip install 'retinoscope\[{name}\]'"):
        get_tracker(name)


def test_a_folder_called_wandb_is_not_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    with pytest.raises(TrackerMissing, match=r"no attribute 'init'"):
        get_tracker("wandb")
