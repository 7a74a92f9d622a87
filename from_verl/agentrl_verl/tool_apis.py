"""What copies of verl's search and sandbox tools, and of its scorers, ask over HTTP.

The servers: one for retrieval, as the ready-made tool asks it; SandboxFusion, or agentrl's own sandbox.
"""

import json
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

DEFAULT_TIMEOUT = 30
SEARCH_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before a request to the retrieval server is sent again, where the server is not there or busy."""
BUSY = (500, 502, 503, 504)
MARGIN = 10.0
"""Seconds that the sandbox's answer may take beyond the program's limits."""
SANDBOX_PAUSES = (1.0, 2.0, 4.0)
FULL = (504,)

SANDBOX_ERROR, RUNTIME_ERROR, TIMEOUT, COMPILE_ERROR = -1, -2, -3, -4
"""verl's verdicts beside True and False."""

CALL_FUNCTION = """
import json as _json, sys as _sys
_arguments = [_json.loads(_line) for _line in _sys.stdin.read().split("\\n") if _line.strip()]
_function = globals().get({name!r}) or getattr(Solution(), {name!r})
_said = _function(*_arguments)
print(_json.dumps(_said) if _said is None or isinstance(_said, (dict, list, tuple, bool)) else _said)
"""


def _post(
    url: str,
    content: Mapping[str, Any],
    timeout: float,
    pauses: Sequence[float],
    busy: Collection[int],
    *,
    lost_is_busy: bool = False,
) -> tuple[dict[str, Any] | None, str | None]:
    """(the server's answer, None), or (None, why there is none)."""
    request = Request(url, json.dumps(content).encode(), {"Content-Type": "application/json"})
    for pause in (*pauses, None):
        try:
            with urlopen(request, timeout=timeout) as response:
                return json.load(response), None
        except HTTPError as error:
            trouble, again = f"{url} answers {error.code} {error.reason}", error.code in busy
        except ValueError as error:
            trouble, again = f"{url} answers no JSON: {error}", False
        except OSError as error:
            trouble, again = f"{url}: {error}", lost_is_busy
        if not again or pause is None:
            break
        time.sleep(pause)
    return None, f"API Call Failed: {trouble}"


def call_search_api(
    retrieval_service_url: str,
    query_list: list[str],
    topk: int = 3,
    return_scores: bool = True,
    timeout: float = DEFAULT_TIMEOUT,
) -> tuple[dict[str, Any] | None, str | None]:
    """(the server's answer, None), or (None, why there is none)."""
    content = {"queries": query_list, "topk": topk, "return_scores": return_scores}
    return _post(retrieval_service_url, content, timeout, SEARCH_PAUSES, BUSY, lost_is_busy=True)


def perform_single_search_batch(
    retrieval_service_url: str,
    query_list: list[str],
    topk: int = 3,
    concurrent_semaphore: Any = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> tuple[str, dict[str, Any]]:
    """(JSON text with the passages of each query under `result`, what happened)."""
    with concurrent_semaphore or nullcontext():
        answer, trouble = call_search_api(retrieval_service_url, query_list, topk, True, timeout)
    metadata = {"query_count": len(query_list), "queries": query_list, "api_request_error": trouble}
    metadata |= {"api_response": answer, "status": "api_error", "total_results": 0, "formatted_result": None}
    if trouble is not None or answer is None:
        return _result(f"Search error: {trouble}"), metadata
    found = answer.get("result") or []
    if not found:
        return _result("No search results found."), metadata | {"status": "no_results"}
    try:
        text = "\n---\n".join(passages_as_text(passages) for passages in found)
    except (KeyError, TypeError, AttributeError) as error:
        return _result(f"Error processing search results: {error!r}"), metadata | {"status": "processing_error"}
    total = sum(len(passages) for passages in found)
    return _result(text), metadata | {"status": "success", "total_results": total, "formatted_result": text}


def passages_as_text(passages: list[dict[str, Any]]) -> str:
    """Passages numbered, each with its first line as its title."""
    parts = []
    for number, passage in enumerate(passages, 1):
        title, _, text = str(passage["document"]["contents"]).partition("\n")
        parts.append(f"Doc {number} (Title: {title})\n{text}\n\n")
    return "".join(parts).strip()


def _result(text: str) -> str:
    return json.dumps({"result": text}, ensure_ascii=False)


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
    content: dict[str, Any] = {"code": code, "stdin": stdin, "language": language, "files": {}, "fetch_files": []}
    content |= {"compile_timeout": compile_timeout, "run_timeout": run_timeout, "memory_limit_MB": memory_limit_mb}
    return _post(sandbox_fusion_url, content, compile_timeout + run_timeout + MARGIN, SANDBOX_PAUSES, FULL)


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
