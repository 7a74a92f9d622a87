"""Asks verl's prime_code: JSON cases in, results out.

With the argument `apart` each case has a process of its own, which verl's guard then spoils; else there is no guard.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

FILE = Path(sys.argv[1]) / "verl/utils/reward_score/prime_code/testing_util.py"


def main() -> None:
    """Whether each case is right."""
    spec = importlib.util.spec_from_file_location("reference_testing_util", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if "apart" in sys.argv:
        results = [apart(module, case) for case in json.load(sys.stdin)]
    else:
        module.reliability_guard = lambda: None  # type: ignore[attr-defined]
        results = [ask(module, case) for case in json.load(sys.stdin)]
    sys.__stdout__.write(json.dumps(results))


def ask(module: Any, case: dict[str, Any]) -> bool:
    """verl's verdict."""
    sys.stdout = sys.stderr
    try:
        return module.run_test(in_outs=case["cases"], test=case["code"], debug=False, timeout=10)[0][0] is True
    except Exception:
        return False


def apart(module: Any, case: dict[str, Any]) -> bool:
    """verl's verdict, as the child's exit code."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    leave, right = os._exit, False
    try:
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (the process ends)
        right = ask(module, case)
    finally:
        leave(not right)


if __name__ == "__main__":
    main()
