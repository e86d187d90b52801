"""The contract of tasks: each declares what it can do, answers in numpy as torch would, and imports without torch."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import tensor
from torch.testing import assert_close

import supple
from supple.errors import RecipeError
from supple.inference.result import Prediction, predictions
from supple.inference.walk import Reached
from supple.losses import OBJECTIVES, make_objective
from supple.model import Output
from supple.point import FULL
from supple.progress import Progress
from supple.tasks import TASKS, Answer, Metric, Task, get_metric, get_task

CLASSES = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")
LOGITS = {  # of three samples
    "classes": torch.randn(3, 7, generator=torch.Generator().manual_seed(0)) * 4,
    "count": torch.rand(3, 1, 4, 5, generator=torch.Generator().manual_seed(0)),
    "boxes": tensor(
        [
            [[1.0, 2, 30, 40, 0.9, 2], [5, 5, 9, 9, 0.4, 3]],
            [[0, 0, 8, 8, 0.2, 1], [0, 0, 0, 0, 0, 0]],
            [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]],
        ]
    ),
}


@pytest.fixture(params=sorted(TASKS))
def task(request) -> Task:
    return TASKS[request.param]


def test_every_task_is_named_as_it_is_registered_and_declares_a_score(task):
    assert TASKS[task.name] is task
    assert task.metrics
    assert (task.metric, task.higher_is_better) == (task.metrics[0].name, task.metrics[0].higher_is_better)
    assert task.meter_of is not None or set(task.each) == {metric.name for metric in task.metrics}
    assert set(task.objectives) <= set(OBJECTIVES)


def test_metrics_of_different_tasks_do_not_share_a_name():
    names = [metric.name for task in TASKS.values() for metric in task.metrics]
    assert len(names) == len(set(names))


def test_an_answer_can_be_written_as_json_and_does_not_depend_on_the_batch(task):
    logits = LOGITS.get(task.name, LOGITS["classes"]).numpy()
    answers = task.answer(logits, CLASSES)
    assert len(answers) == 3
    for row, answer in zip(logits, answers):
        assert isinstance(answer, Answer)
        assert answer.label
        scores = list(answer.scores.values())
        assert scores == sorted(scores, reverse=True)
        assert len(scores) <= 5
        assert json.loads(json.dumps(answer.details)) == answer.details
        [alone] = task.answer(row[None], CLASSES)
        assert (alone.label, alone.details) == (answer.label, answer.details)
        assert alone.scores == pytest.approx(answer.scores)


def test_the_class_answered_is_the_one_that_torch_counts_as_right():
    task, logits = TASKS["classes"], LOGITS["classes"]
    for place, answer in enumerate(task.answer(logits.numpy(), CLASSES)):
        best = logits[place].softmax(0).topk(5)
        assert list(answer.scores) == [CLASSES[i] for i in best.indices.tolist()]
        assert_close(tensor(list(answer.scores.values())), best.values)
        target = tensor([CLASSES.index(answer.label)])
        assert task.each["accuracy"](Output(FULL, logits[place : place + 1]), target).item() == 1


def test_equal_probabilities_are_answered_by_the_first_class():
    [answer] = TASKS["classes"].answer(np.zeros((1, 2), np.float32), ("first", "second"))
    assert (answer.label, answer.scores) == ("first", {"first": 0.5, "second": 0.5})


def test_the_count_answered_is_the_one_that_torch_scores():
    task, logits = TASKS["count"], LOGITS["count"]
    counts = [answer.details["count"] for answer in task.answer(logits.numpy(), ("people",))]
    assert_close(task.each["mae"](Output(FULL, logits), tensor(counts)), torch.zeros(3), atol=1e-5, rtol=0)
    [one] = task.answer(np.array([[2.26]], np.float32), ("people",))  # a branch gives a number, not a map
    assert one.label == "2.3 people"


def test_importing_tasks_and_answering_imports_no_torch():
    script = (
        "import sys; sys.modules['torch'] = None\n"  # importing it would fail
        "import numpy as np\n"
        "from supple.tasks import TASKS\n"
        "from supple.inference.result import predictions\n"
        "from supple.data.preprocess import saved_preprocess\n"
        "from supple.ladder import Ladder, Row\n"
        "saved = {'size': 8, 'channels': 3, 'mean': [0.5] * 3, 'std': [0.5] * 3}\n"
        "(x,) = saved_preprocess('classes', saved).arrays(np.zeros((9, 12, 3), np.uint8))\n"
        "logits = {'classes': x[:, :, 0, 0], 'count': x[:, :1], 'boxes': np.zeros((1, 2, 6), np.float32)}\n"
        "print(*(task.answer(logits[name], ('a', 'b', 'c'))[0].label for name, task in TASKS.items()), sep='|')\n"
        "print(Ladder([Row('full', metric='accuracy', score=0.5)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "a|-64.0 a|no objects"  # black, normalised, is -1
    assert "top-1 %" in done.stdout


def test_outside_tasks_no_module_compares_the_name_of_a_task():
    """What a task can do is asked of its declaration. (assemble.py still asks a backbone which task it answers.)"""
    root = Path(supple.__file__).parent
    sources = [path for path in root.rglob("*.py") if path.parent.name != "tasks" and path.name != "assemble.py"]
    comparison = re.compile(rf'task\b\)?\s*(==|!=|in|not in)\s*[("\[{{]*"?({"|".join(TASKS)})"')
    assert len(sources) > 100
    assert comparison.search('if model.task != "classes":')
    assert [path.name for path in sources if comparison.search(path.read_text())] == []


def test_a_task_or_metric_that_nobody_declares():
    with pytest.raises(RecipeError, match='no task "clases"') as caught:
        get_task("clases")
    assert '"classes"' in caught.value.cure
    assert "--import" in caught.value.cure
    assert get_metric("psnr") == Metric("psnr")
    assert (get_metric("psnr").title, get_metric("psnr").scale) == ("psnr", 1)
    assert (get_metric("accuracy").title, get_metric("accuracy").scale) == ("top-1 %", 100)


def test_an_objective_is_refused_for_a_task_that_does_not_declare_it(monkeypatch):
    for name, wrong, cure in (("distill", "count", "count or density"), ("own", "classes", "distill")):
        with pytest.raises(RecipeError, match=f"{name}, which is for") as caught:
            make_objective({"name": name}, (FULL,), wrong)
        assert f"loss.name={cure}." in caught.value.cure
    monkeypatch.setitem(OBJECTIVES, "free", lambda points: len)
    assert make_objective({"name": "free"}, (FULL,), "boxes") is len  # no task claims it


def test_progress_shows_a_score_in_the_unit_of_its_metric(capsys):
    from supple.scoring import Score

    progress = Progress(2, 1, 1)
    for metric, score in (("accuracy", 0.125), ("mae", 0.125), ("psnr", 20.0)):
        progress.epoch(0, 1.0, [Score("full", metric, score, 1.0, 4)], best=False)
    lines = capsys.readouterr().err.splitlines()
    for line, words in zip(lines, ("validation top-1 %: full 12.5", "validation MAE: full 0.1", "psnr: full 20.0")):
        assert words in line
        assert "ETA" in line


# --- predictions ------------------------------------------------------------------------------------------------------


def test_samples_answered_by_points_of_other_shapes_keep_their_order():
    reached = [
        Reached("exit=1", np.array([2.0], np.float32), "deadline"),
        Reached("full", np.ones((1, 2, 2), np.float32), "full"),
        Reached("exit=1", np.array([3.0], np.float32), "deadline"),
    ]
    found = predictions(TASKS["count"], ("people",), reached, {}, {}, elapsed_ms=1.0, file="a.png")
    assert [one.details["count"] for one in found] == [2.0, 4.0, 3.0]
    assert [one.point for one in found] == ["exit=1", "full", "exit=1"]
    assert found[0].to_json() == {
        "label": "2.0 people", "scores": [], "point": "exit=1", "reason": "deadline", "elapsed_ms": 1.0,
        "in_time": None, "within_budget": None, "file": "a.png", "count": 2.0,
    }  # fmt: skip


def test_scores_are_at_the_temperature_of_the_point():
    logits = np.array([np.log(9.0), 0.0], np.float32)
    reached = [Reached("full", logits, "full")]
    found = predictions(TASKS["classes"], ("a", "b"), reached, {"full": 2.0}, {}, elapsed_ms=1.0)
    assert found[0].scores == pytest.approx({"a": 0.75, "b": 0.25})  # half of ln 9 is ln 3
    assert found[0].best_score == pytest.approx(0.75)


def test_an_answer_that_names_no_class_has_no_score():
    scores = {"red": 0.4, "blue": 0.3}
    assert Prediction("none", scores, "full", "full", 1.0).best_score is None
    assert Prediction("red, blue", scores, "full", "full", 1.0).best_score == 0.4


def test_the_reason_says_when_a_limit_was_not_kept():
    def made(**limits: bool) -> Prediction:
        return Prediction("cat", {}, "exit=1", "deadline", 5.0, **limits)

    assert (made().why(), made().late) == ("deadline", False)
    assert (made(in_time=False).why(), made(in_time=False).late) == ("deadline, late", True)
    assert made(within_budget=False).why() == "nothing fits; used the cheapest"


def test_classes_are_listed_as_many_as_asked_for():
    for asked, listed in ((1, 1), (3, 3), (7, 7), (50, 7)):
        answer = TASKS["classes"].answer(LOGITS["classes"].numpy(), CLASSES, top_k=asked)[0]
        assert len(answer.scores) == listed
        assert list(answer.scores.values()) == sorted(answer.scores.values(), reverse=True)
        assert next(iter(answer.scores)) == answer.label
