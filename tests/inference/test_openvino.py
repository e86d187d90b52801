"""What OpenVINO does to a process beside computing."""

import subprocess
import sys

# Graphs end in another thread than the main one, which made them; then a signal comes.
SIGNALLED = """
import gc, os, signal, threading
import numpy as np, openvino
from openvino import opset13
from supple.inference.engines.openvino import core

x = opset13.parameter([1, 4], np.float32)
held = [core().compile_model(openvino.Model([opset13.relu(x)], [x]), "CPU")]
held[0](np.zeros((1, 4), np.float32))
ending = threading.Thread(target=lambda: (held.clear(), gc.collect()))
ending.start()
ending.join()
signal.signal(signal.SIGINT, lambda *given: print("interrupted"))
os.kill(os.getpid(), signal.SIGINT)
"""


def test_a_signal_finds_its_stack_after_graphs_ended_in_another_thread():
    done = subprocess.run([sys.executable, "-c", SIGNALLED], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
