"""What copies of verl's search tool call: a retrieval server, asked over HTTP, as the ready-made tool asks it."""

import json
import time
from contextlib import nullcontext
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

DEFAULT_TIMEOUT = 30
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before the request is sent again, where the server is not there or busy."""
BUSY = (500, 502, 503, 504)


def call_search_api(
    retrieval_service_url: str,
    query_list: list[str],
    topk: int = 3,
    return_scores: bool = True,
    timeout: float = DEFAULT_TIMEOUT,
) -> tuple[dict[str, Any] | None, str | None]:
    """(the server's answer, None), or (None, why there is none)."""
    body = json.dumps({"queries": query_list, "topk": topk, "return_scores": return_scores}).encode()
    request = Request(retrieval_service_url, body, {"Content-Type": "application/json", "Accept": "application/json"})
    trouble = ""
    for pause in (*PAUSES, None):
        try:
            with urlopen(request, timeout=timeout) as response:
                return json.load(response), None
        except HTTPError as error:
            trouble = f"{retrieval_service_url} answers {error.code} {error.reason}"
            if error.code not in BUSY:
                break
        except ValueError as error:
            return None, f"{retrieval_service_url} answers no JSON: {error}"
        except OSError as error:
            trouble = f"{retrieval_service_url}: {error}"
        if pause is not None:
            time.sleep(pause)
    return None, f"API Call Failed: {trouble}"


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
