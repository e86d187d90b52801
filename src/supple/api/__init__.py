"""The verbs as functions: all that the command line does, from Python.

A verb takes a model in hand or a run folder, and returns objects. It prints nothing, unless `progress=True` asks for a
bar on stderr. What is measured of a run is written into its folder; of a model in hand, onto the model (`model.ladder`,
`model.policy`), which is left in eval mode. Data are a data set, a loader of torch, or a path of pictures; None: the
run's own.
"""

from supple.api.making import extract, fit, merge, prune, train
from supple.api.measuring import analyse, bench, evaluate, profile, report, search
from supple.api.using import calibrate, export, predict
from supple.experiments.reproduction import reproduce
from supple.server.running import serve

__all__ = [
    "analyse",
    "bench",
    "calibrate",
    "evaluate",
    "export",
    "extract",
    "fit",
    "merge",
    "predict",
    "profile",
    "prune",
    "report",
    "reproduce",
    "search",
    "serve",
    "train",
]
