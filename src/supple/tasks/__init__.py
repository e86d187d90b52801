"""What a model is asked: which class, how many, what lies where. A task says how answers are scored and told; all else
is one core.

A new task is a file here, a line in TASKS, and data sets that name it (see `data.sets.DATASETS`).
"""

from supple.tasks.boxes import BOXES
from supple.tasks.classes import CLASSES
from supple.tasks.count import COUNT
from supple.tasks.task import Meter, Result, Task, Told

__all__ = ["TASKS", "Meter", "Result", "Task", "Told"]

TASKS: dict[str, Task] = {"classes": CLASSES, "count": COUNT, "boxes": BOXES}
