"""What copies of verl's sandbox tool and scorers call: a SandboxFusion server, or agentrl's own, asked over HTTP."""

import json
import time
from contextlib import nullcontext
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

MARGIN = 10.0
"""Seconds that an answer may take beyond the program's limits."""
PAUSES = (1.0, 2.0, 4.0)
FULL = 504

SANDBOX_ERROR, RUNTIME_ERROR, TIMEOUT, COMPILE_ERROR = -1, -2, -3, -4
"""verl's verdicts beside True and False."""

CALL_FUNCTION = """
import json as _json, sys as _sys
_arguments = [_json.loads(_line) for _line in _sys.stdin.read().split("\\n") if _line.strip()]
_function = globals().get({name!r}) or getattr(Solution(), {name!r})
_said = _function(*_arguments)
print(_json.dumps(_said) if _said is None or isinstance(_said, (dict, list, tuple, bool)) else _said)
"""


def call_sandbox_api(
    sandbox_fusion_url: str,
    code: str,
    stdin: str | None,
    compile_timeout: float,
    run_timeout: float,
    memory_limit_mb: int,
    language: str = "python",
) -> tuple[dict[str, Any] | None, str | None]:
    """(the server's answer, None), or (None, why there is none)."""
    asked: dict[str, Any] = {"code": code, "stdin": stdin, "language": language, "files": {}, "fetch_files": []}
    asked |= {"compile_timeout": compile_timeout, "run_timeout": run_timeout, "memory_limit_MB": memory_limit_mb}
    request = Request(sandbox_fusion_url, json.dumps(asked).encode(), {"Content-Type": "application/json"})
    patience, trouble = compile_timeout + run_timeout + MARGIN, ""
    for pause in (*PAUSES, None):
        try:
            with urlopen(request, timeout=patience) as response:
                return json.load(response), None
        except HTTPError as error:
            trouble = f"{sandbox_fusion_url} answers {error.code} {error.reason}"
            if error.code != FULL:
                break
        except (OSError, ValueError) as error:
            trouble = f"{sandbox_fusion_url}: {error}"
            break
        if pause is not None:
            time.sleep(pause)
    return None, f"API Call Failed: {trouble}"


def process_single_case(
    case_index: int,
    stdin_data: Any,
    expected_output: Any,
    sandbox_fusion_url: str,
    generation: str,
    timeout: float,
    memory_limit_mb: int | str,
    language: str = "python",
    concurrent_semaphore: Any = None,
    fn_name: str | None = None,
) -> tuple[Any, dict[str, Any]]:
    """(verdict, what happened) of one program on one input; True only where it prints what is expected.

    The verdict is False for other output, -1 for the sandbox's own trouble, -2 for a program that fails, -3 for one
    that takes too long, -4 for one that does not compile. `fn_name`: a Python function to call with the input's lines,
    each a JSON value.
    """
    if fn_name and language == "python":
        generation += CALL_FUNCTION.format(name=fn_name)
    if isinstance(memory_limit_mb, str):  # verl 0.4 has no such argument, and the language stands here
        language, memory_limit_mb = memory_limit_mb, 1024
    stdin = None if stdin_data is None else str(stdin_data)
    with concurrent_semaphore or nullcontext():
        limits = timeout, timeout, memory_limit_mb
        answer, trouble = call_sandbox_api(sandbox_fusion_url, generation, stdin, *limits, language)
    metadata = _metadata(case_index, stdin, expected_output, answer, trouble)
    verdict, metadata["status"] = _verdict(answer, metadata, expected_output)
    return verdict, metadata


def _metadata(index: int, stdin: str | None, expected: Any, answer: Any, trouble: str | None) -> dict[str, Any]:
    said = answer or {}
    compiled, run = said.get("compile_result") or {}, said.get("run_result") or {}
    return {
        "case_index": index,
        "input": stdin,
        "expected_output": str(expected) if expected else None,
        "api_request_error": trouble,
        "api_response": answer,
        "api_status": said.get("status"),
        "compile_status": compiled.get("status"),
        "compile_duration": compiled.get("execution_time"),
        "compile_stderr": compiled.get("stderr"),
        "run_status": run.get("status"),
        "stdout": run.get("stdout"),
        "stderr": run.get("stderr"),
        "exit_code": run.get("return_code"),
        "duration": run.get("execution_time"),
    }


def _verdict(answer: Any, metadata: dict[str, Any], expected: Any) -> tuple[Any, str]:
    """(verdict, its name)."""
    if answer is None:
        return SANDBOX_ERROR, "api_error"
    if metadata["api_status"] == "SandboxError":
        return SANDBOX_ERROR, "sandbox_error"
    if metadata["api_status"] == "Failed":
        return _failure(answer, metadata)
    if metadata["run_status"] != "Finished":
        return SANDBOX_ERROR, "unexpected_success_state"
    right = expected is None or str(metadata["stdout"] or "").rstrip("\n") == str(expected).rstrip("\n")
    return right, "success" if right else "wrong_answer"


def _failure(answer: Any, metadata: dict[str, Any]) -> tuple[int, str]:
    """Of a program that did not end well."""
    compiled, run = answer.get("compile_result"), answer.get("run_result")
    if compiled and (metadata["compile_status"] != "Finished" or compiled.get("return_code")):
        late = metadata["compile_status"] == "TimeLimitExceeded"
        return COMPILE_ERROR, "compile_timeout" if late else "compile_error"
    if metadata["run_status"] == "TimeLimitExceeded":
        return TIMEOUT, "timeout"
    return (RUNTIME_ERROR, "runtime_error") if run else (SANDBOX_ERROR, "unknown_failure_state")
