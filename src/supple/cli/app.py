"""The verbs, gathered."""

import inspect
from importlib import import_module

import typer

from supple.cli import VERBS

EXAMPLES = {
    "list": ("supple list vit", "supple list --recipes cifar100"),
    "profile": (
        "supple profile recipes/ipkd_ta/msdnet_cifar100_tam.yaml",
        "supple profile recipes/ipkd_ta/mobilenet_cifar10_ipkd.yaml --json",
    ),
    "train": (
        "supple train pictures --minutes 30",
        "supple train recipes/pocket/digits.yaml --out runs/digits",
    ),
    "search": (
        "supple search runs/elastic --budget-ms 5 --engine openvino",
        "supple search runs/elastic --budget-ms 2,5,10 --scored 100 --json",
    ),
    "evaluate": ("supple evaluate runs/digits", "supple evaluate runs/digits --json"),
    "calibrate": (
        "supple calibrate runs/demo --budget-macs 0.5x",
        "supple calibrate runs/demo --max-drop 0.01 --measure margin --json",
    ),
    "predict": (
        "supple predict runs/demo runs/demo/images/*.png --deadline-ms 5",
        "supple predict runs/demo runs/demo/images --budget-macs 1e6 --json",
    ),
    "serve": (
        "supple serve runs/demo",
        "supple serve pets=runs/pets/export/onnx-fp32 runs/demo --port 8080 --workers 2",
    ),
    "cluster": (
        "supple cluster start runs/shuffled --nodes 4 --replicas 2",
        "supple cluster chaos --kill-every 10s",
    ),
    "bench": (
        "supple bench runs/demo --batch 1,16 --threads 1,2",
        "supple bench runs/demo --engine torch,onnxruntime --against resnet18",
    ),
    "export": ("supple export runs/demo", "supple export runs/demo --to openvino --int8"),
    "extract": (
        "supple extract runs/demo --point exit=2 --out runs/demo-exit2",
        "supple extract runs/demo --point exit=1 --deploy --out runs/demo-fast",
    ),
    "prune": (
        "supple prune runs/search --ratio 0.4 --out runs/pruned",
        "supple prune runs/search --widths 0.2,0.4,0.6,0.8 --out runs/nested",
    ),
    "merge": (
        "supple merge runs/a runs/b runs/c runs/d --plan 1-2-3-4 --ends mean --out runs/merged",
        "supple merge runs/a runs/b runs/c runs/d --count 100 data.test_limit=1000 --json",
    ),
    "analyse": (
        "supple analyse runs/shuffle --base runs/baseline --layer 6",
        "supple analyse runs/skip --point skip=0.5 --out analysis --json",
    ),
    "report": ("supple report runs/demo", "supple report runs/demo --json"),
    "reproduce": (
        "supple reproduce layershuffle --claims C16-C18 --jobs 2",
        "supple reproduce --all --no-run --json",
    ),
    "demo": ("supple demo photo.jpg more", "supple demo --train --out runs/digits"),
    "doctor": ("supple doctor", "supple doctor --json"),
}

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)
for _name, _about in VERBS.items():  # each in the file of its name
    _verb = getattr(import_module(f"supple.cli.{_name}"), "list_" if _name == "list" else _name)
    _doc = "" if isinstance(_verb, typer.Typer) else inspect.getdoc(_verb) or ""
    _text = f"{_about[0].upper()}{_about[1:]}.\n\n{_doc}"
    _epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[_name])
    if isinstance(_verb, typer.Typer):  # a verb of several
        app.add_typer(_verb, name=_name, help=_text, epilog=_epilog)
    else:
        app.command(_name, help=_text, epilog=_epilog)(_verb)
