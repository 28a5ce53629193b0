from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from retinoscope.core.errors import RetinoscopeError, WrongInput
from retinoscope.core.settings import WrongSetting
from retinoscope.models.load import load_model
from retinoscope.train.feed import Portion
from retinoscope.train.learner import Learner
from retinoscope.train.objective import distilled
from retinoscope.train.processes import Processes
from retinoscope.train.recipe import Recipe
from retinoscope.train.schedule import Plan
from retinoscope.train.student import Student, draws, largest_rate, load_student
from retinoscope.train.teacher import load_teacher

PLAN = Plan(10, 0, 100)
PORTION = Portion(
    torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 10
)


def learner(recipe: Recipe, teacher: nn.Module | None = None, **more) -> Learner:
    loaded, _ = load_student(recipe)
    student = Student(loaded, recipe.distillation != "none")
    return Learner(recipe, student, PLAN, 10, Processes(), teacher, **more)


def weights(made: Learner) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in made.student.state_dict().items()}


def test_stochastic_depth_is_wired(quick):
    """The same images at two steps give other losses only where branches drop."""
    losses = {}
    for rate in (0.0, 0.5):
        recipe = quick(drop_path=rate, lr=0.0, warmup=0, weight_decay=0.0, schedule="constant")
        made = learner(recipe)
        losses[rate] = [made.learn(step, PORTION).item() for step in range(6)]
    assert len(set(losses[0.0])) == 1
    assert len(set(losses[0.5])) > 1


@pytest.mark.parametrize("model", ["micro_resnet", "micro_vit", "micro_swin", "micro_alternet"])
def test_rates_of_stochastic_depth_rise_with_depth(model):
    loaded, way = load_student(Recipe(model=model, drop_path=0.2))
    rates = [m.drop_prob for m in loaded.model.modules() if getattr(m, "drop_prob", None)]
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(0.2)
    assert way.model == f"{model}:drop_path_rate=0.2"


@pytest.mark.parametrize(
    ("model", "rate"),
    [
        ("swin_tiny_cifar", 0.0), ("torchvision:efficientnet_b0", 0.0), ("convnext_atto", 0.1),
    ],
)  # fmt: skip
def test_the_rate_is_the_recipes_not_the_models(model, rate):
    """Some drop branches unless they are told not to."""
    loaded, _ = load_student(Recipe(model=model, drop_path=rate))
    assert largest_rate(loaded.model) == pytest.approx(rate)
    assert draws(loaded.model) == (rate > 0 or "efficientnet" in model)


def test_another_rate_in_the_models_name_is_refused():
    with pytest.raises(WrongSetting, match=r"stochastic depth of 0\.3, not 0\.1"):
        load_student(Recipe(model="micro_vit:drop_path_rate=0.3", drop_path=0.1))
    # torchvision has fixed the rate of this one.
    with pytest.raises(WrongSetting, match=r"depth of 0\.2, not 0 .*Say drop_path=0\.2"):
        load_student(Recipe(model="torchvision:swin_t"))


def test_the_average_is_that_of_the_weights(quick):
    recipe = quick(ema=0.7)
    made = learner(recipe)
    expected = weights(made)
    for step in range(4):
        made.learn(step, PORTION)
        for key, value in weights(made).items():
            if value.is_floating_point():
                expected[key] = 0.7 * expected[key] + 0.3 * value
    assert made.best is not made.student
    for key, value in made.best.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(value, expected[key])


def test_a_step_with_sam_uses_the_same_draws_and_leaves_statistics_of_one_pass(quick):
    recipe = quick("build:img_size=32,dropout=0.5", sam=0.1)
    made, plain = learner(recipe), learner(replace(recipe, sam=0.0))
    assert made.learn(0, PORTION) == plain.learn(0, PORTION)
    ours, theirs = weights(made), weights(plain)
    assert torch.equal(ours["backbone.body.1.running_mean"], theirs["backbone.body.1.running_mean"])
    assert not torch.equal(ours["backbone.head.weight"], theirs["backbone.head.weight"])


def test_gradients_are_clipped_by_their_common_norm(quick):
    recipe = quick(optimiser="momentum", clip=0.01, weight_decay=0.0, lr=1.0, warmup=0)
    made = learner(recipe)
    before = weights(made)
    made.learn(0, PORTION)
    moved = [
        (value - before[key]).flatten() for key, value in weights(made).items()
        if key.removeprefix("backbone.") in dict(made.student.backbone.named_parameters())
    ]  # fmt: skip
    assert torch.cat(moved).norm().item() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_a_teacher_is_asked_about_the_images_that_the_student_sees(quick, tmp_path, kind):
    settings = {"distillation": kind, "teacher": "x", "teaching": 0.3, "temperature": 2.0}
    recipe = quick(mixup=0.8, drop_path=0.0, **settings)
    asked = []

    class Teacher(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            asked.append(images.clone())
            return 5 * images.mean((2, 3))[:, :1] * torch.arange(10.0)

    made = learner(recipe, Teacher())
    student = made.student
    images, targets = recipe.augmentation.mix(*PORTION[:2], 10, seed=0, step=3)
    twin = load_model(recipe.model, pretrained=False).model.train()
    logits = twin(student.normalise(images))
    expected = distilled(logits, logits, targets, Teacher()(images), kind, 0.3, 2.0)
    torch.testing.assert_close(made.learn(3, PORTION).float(), expected.detach())
    assert torch.equal(asked[0], images)


def test_a_distillation_token_learns_of_the_teacher():
    recipe = Recipe(
        model="deit_tiny_distilled_patch16_224:img_size=32,patch_size=8,num_classes=10,depth=1",
        distillation="hard", teacher="x", weight_decay=0.0, lr=0.1, optimiser="momentum", warmup=0,
    )  # fmt: skip

    class Teacher(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.eye(10)[torch.full((len(images),), 7)]

    made = learner(recipe, Teacher())
    before = weights(made)["backbone.head_dist.bias"]
    made.learn(0, PORTION)
    moved = weights(made)["backbone.head_dist.bias"] - before
    assert moved.argmax() == 7, "its head learns the teacher's choice, not the labels"
    with torch.no_grad():
        answer = made.student.eval()(PORTION.images)
    assert isinstance(answer, Tensor)


def test_a_teacher_of_other_answers_or_sizes_is_refused(quick):
    recipe = quick(distillation="soft", teacher="micro_resnet:num_classes=7")
    with pytest.raises((WrongInput, RetinoscopeError), match=r"weights of|answers"):
        load_teacher(recipe, (3, 32, 32), 10, Processes())


class Hungry(nn.Module):
    """Runs out of memory with more than three images."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        if len(images) > 3:
            raise torch.OutOfMemoryError("too many")
        return self.net(images)


@pytest.mark.parametrize("sam", [0.0, 0.05])
def test_out_of_memory_goes_on_in_parts_and_says_so(quick, sam):
    recipe = quick("smooth:img_size=32", sam=sam)
    said: list[str] = []
    made, plain = learner(recipe, say=said.append), learner(recipe)
    made.student.backbone = Hungry(made.student.backbone)
    torch.testing.assert_close(made.learn(0, PORTION), plain.learn(0, PORTION))
    assert len(said) == 2
    assert "Out of memory: each batch of 8 now goes through in 4 parts" in said[1]
    for a, b in zip(made.student.parameters(), plain.student.parameters(), strict=True):
        # Sums of parts against one sum; AdamW divides by the gradient's size.
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_other_errors_are_not_taken_for_want_of_memory(quick):
    made = learner(quick())

    class Broken(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            raise RuntimeError("a bug")

    made.student.backbone = Broken()
    with pytest.raises(RuntimeError, match="a bug"):
        made.learn(0, PORTION)


def test_passes_are_averaged_in_the_loss(quick):
    recipe = quick("build:img_size=32,dropout=0.5", ensemble=3, lr=0.0)
    made = learner(recipe)
    found = made.learn(0, PORTION)
    twin = load_model(recipe.model, pretrained=False).model.train()
    torch.manual_seed(made.seed(0))
    pixels = made.student.normalise(PORTION.images)
    mean = torch.stack([twin(pixels).softmax(-1) for _ in range(3)]).mean(0)
    torch.testing.assert_close(found.float(), cross_entropy(mean.log(), PORTION.labels).detach())
