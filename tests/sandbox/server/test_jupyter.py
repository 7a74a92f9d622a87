"""POST /run_jupyter, and the driver behind it in both its forms."""

import base64
import json
import re
import subprocess
import sys
from importlib.resources import files

import pytest

pytestmark = pytest.mark.integration

CELLS = [
    "a = 123",
    "a",
    "print(a)",
    "import sys; sys.stderr.write('warned'); None",
    "raise RuntimeError('message')",
    "import os; _ = os.system('echo child')",
    "a + 1;",
    "import asyncio\nawait asyncio.sleep(0)\n'awaited'",
    "x = = 1",
    "sys.exit(3)",
    "class Page:\n    def _repr_html_(self): return '<b>x</b>'\nPage()",
    "display('shown', a)",
    "input()",
]


def run_driver(cells, *, plain, cell_timeout=0.0):
    """Each cell's record, from the driver run by itself: IPython's kernel or the plain one."""
    source = (files("agentrl_sandbox.server") / "notebook_driver.py").read_text()
    hide = "import sys; sys.modules['IPython'] = None\n" if plain else ""
    sent = json.dumps({"cells": cells, "cell_timeout": cell_timeout})
    program = [sys.executable, "-c", f"{hide}__file__ = '/nonexistent'\n{source}"]
    done = subprocess.run(program, input=sent, capture_output=True, text=True, timeout=600, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "ipython"])
def test_both_kernels_report_the_same(plain):
    records = run_driver(CELLS, plain=plain)
    assert [record["stdout"] for record in records[:4]] == ["", "", "123\n", ""]
    assert records[1]["display"] == [{"text/plain": "123"}]
    assert records[3]["stderr"] == "warned"
    error = records[4]["error"][0]
    assert (error["ename"], error["evalue"]) == ("RuntimeError", "message")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", "".join(error["traceback"]))
    assert "raise RuntimeError('message')" in lines
    assert "driver" not in lines
    assert records[5]["stdout"] == "child\n"
    assert records[6]["display"] == []
    assert records[7]["display"] == [{"text/plain": "'awaited'"}]
    assert records[8]["error"][0]["ename"] == "SyntaxError"
    assert records[9]["error"][0]["ename"] == "SystemExit"
    assert records[10]["display"][0]["text/html"] == "<b>x</b>"
    assert records[11]["display"] == [{"text/plain": "'shown'"}, {"text/plain": "123"}]
    assert len(records[12]["error"]) == 1


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "ipython"])
def test_a_cell_that_takes_too_long_does_not_end_the_others(plain):
    stubborn = "while True:\n    try:\n        while True: pass\n    except Exception: pass"
    records = run_driver(["1", stubborn, "2"], plain=plain, cell_timeout=0.5)
    assert records[1]["error"][0]["ename"] == "CellTimeout"
    assert records[2]["display"] == [{"text/plain": "2"}]


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "ipython"])
def test_threads_and_children_of_a_cell_do_not_hold_the_driver_up(plain):
    cells = [
        "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()",
        "import os; os.fork(); 1",
    ]
    assert len(run_driver(cells, plain=plain)) == 2


def jupyter(server, cells, **fields):
    status, reply = server.post("/run_jupyter", {"cells": cells, **fields})
    assert status == 200, reply
    return reply


def test_cells_share_state_and_all_run_after_an_error(server):
    reply = jupyter(server, ["a = 20", "1/0", "print(a + 1)", "a * 2"])
    assert (reply["status"], reply["message"], reply["driver"]["status"]) == ("Success", "", "Finished")
    assert [cell["stdout"] for cell in reply["cells"]] == ["", "", "21\n", ""]
    assert reply["cells"][1]["error"][0]["ename"] == "ZeroDivisionError"
    assert reply["cells"][3]["display"] == [{"text/plain": "40"}]
    assert reply["isolation"] == server.get("/health")[1]["isolation"]


def test_every_call_has_a_new_kernel(server):
    jupyter(server, ["kept = 1; open('kept', 'w').close()"])
    reply = jupyter(server, ["kept", "import os; os.path.exists('kept')"])
    assert reply["cells"][0]["error"][0]["ename"] == "NameError"
    assert reply["cells"][1]["display"] == [{"text/plain": "False"}]


def test_files(server):
    content = base64.b64encode(b"hello").decode()
    cells = ["import os; sorted(os.listdir('.'))", "open('b', 'w').write(open('a').read().upper());"]
    reply = jupyter(server, cells, files={"a": content}, fetch_files=["b"])
    assert reply["cells"][0]["display"] == [{"text/plain": "['a']"}]
    assert base64.b64decode(reply["files"]["b"]) == b"HELLO"


def test_after_a_time_limit_the_cells_that_were_done_are_there(server):
    reply = jupyter(server, ["print('done')", "while True: pass", "3"], total_timeout=4)
    assert (reply["status"], reply["driver"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert [cell["stdout"] for cell in reply["cells"]] == ["done\n"]


def test_a_kernel_that_dies_is_failed(server):
    reply = jupyter(server, ["1", "import os; os._exit(0)", "2"])
    assert (reply["status"], len(reply["cells"])) == ("Failed", 1)


def test_a_cell_cannot_forge_what_makes_no_sense(server):
    forge = (
        "import os\nfor fd in range(3, 40):\n    try: os.write(fd, b'[[[[{\"stdout\": 5}\\n')\n    except OSError: pass"
    )
    reply = jupyter(server, ["1", forge, "2"])
    assert reply["status"] in ("Success", "Failed")
    for cell in reply["cells"]:
        assert set(cell) == {"stdout", "stderr", "display", "error"}


def test_other_kernels_are_refused(server):
    status, reply = server.post("/run_jupyter", {"cells": [], "kernel": "julia"})
    assert (status, reply["detail"][0]["loc"]) == (422, ["body", "kernel"])


def test_no_cells(server):
    reply = jupyter(server, [])
    assert (reply["status"], reply["cells"]) == ("Success", [])
