"""What a model is asked: which class, how many, what lies where. A task declares how answers are scored and put into
words, and what it can do; no other module compares the names of tasks.

A new task is a file here and a line in TASKS: see docs/add-a-task.md. Importing this package does not import torch.
"""

from supple.errors import RecipeError
from supple.tasks.boxes import BOXES
from supple.tasks.classes import CLASSES
from supple.tasks.count import COUNT
from supple.tasks.task import Answer, Meter, Metric, Result, Task
from supple.text import did_you_mean

__all__ = ["TASKS", "Answer", "Meter", "Metric", "Result", "Task", "get_metric", "get_task"]

TASKS: dict[str, Task] = {task.name: task for task in (CLASSES, COUNT, BOXES)}


def get_task(name: str) -> Task:
    if name not in TASKS:
        cure = f"{did_you_mean(name, TASKS)} If a module of yours brings it, name it: supple --import MODULE ..."
        raise RecipeError(f'there is no task "{name}".', cure)
    return TASKS[name]


def get_metric(name: str | None) -> Metric:
    """As the task that it belongs to declares it; one that no task declares is a plain number."""
    declared = (metric for task in TASKS.values() for metric in task.metrics if metric.name == name)
    return next(declared, Metric(name or "score"))
