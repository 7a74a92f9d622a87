"""Searches with a retrieval server over HTTP; SearchTool is the same with the answers of verl's tool of that name.

Shows: a tool that calls a server. A failing server raises, which masks the sample; `retries` and `max_concurrency` in
the YAML handle the rest.

The server gets {"queries": [...], "topk": 3, "return_scores": true} and answers {"result": [[{"document":
{"contents": "title, new line, text"}, "score": 1.0}, ...], ...]}, one list per query.
"""

import json
from typing import Any
from urllib.request import Request, urlopen

from agentrl.core.errors import UserError
from agentrl.tools import BaseTool


class RetrievalTool(BaseTool):
    """config: `retrieval_service_url`, `topk` (3), `timeout` (seconds per request, 30)."""

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        super().__init__(config, tool_schema)
        self.url: str = config.get("retrieval_service_url") or ""
        if not self.url:
            raise UserError("config.retrieval_service_url is missing: write the server's address, ending in /retrieve")
        self.top_k = int(config.get("topk", 3))
        self.timeout = float(config.get("timeout", 30))

    def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        """The passages for each query, numbered."""
        queries = parameters["query_list"]
        found = [_listed(hits) for hits in self.found(queries)]
        return "\n---\n".join(found), 0.0, {"queries": len(queries)}

    def found(self, queries: list[str]) -> list[list[dict[str, Any]]]:
        """The hits for each query. Raises OSError."""
        answer = self.ask({"queries": queries, "topk": self.top_k, "return_scores": True})
        return list(answer["result"])

    def ask(self, request: dict[str, Any]) -> Any:
        """Post the request as JSON; returns the answer. Raises OSError."""
        headers = {"Content-Type": "application/json"}
        with urlopen(Request(self.url, json.dumps(request).encode(), headers), timeout=self.timeout) as response:
            return json.load(response)


class SearchTool(RetrievalTool):
    """verl's SearchTool: the passages as text in JSON, each below its title (the first line)."""

    def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        """{"result": passages}; the metrics are verl's."""
        queries = parameters.get("query_list")
        if not isinstance(queries, list) or not queries:
            return _result("Error: 'query_list' is missing, empty, or not a list in parameters."), 0.0, {}
        found = self.found(queries)
        text = "\n---\n".join(map(_titled, found)) if found else "No search results found."
        total = sum(map(len, found))
        return _result(text), 0.0, {"query_count": len(queries), "total_results": total}


def _listed(hits: list[dict[str, Any]]) -> str:
    passages = (hit.get("document", hit)["contents"] for hit in hits)
    return "\n".join(f"[{i}] {passage}" for i, passage in enumerate(passages, 1)) or "Nothing found."


def _titled(hits: list[dict[str, Any]]) -> str:
    parts = ""
    for number, hit in enumerate(hits, 1):
        title, _, text = hit["document"]["contents"].partition("\n")
        parts += f"Doc {number} (Title: {title})\n{text}\n\n"
    return parts.strip()


def _result(text: str) -> str:
    return json.dumps({"result": text}, ensure_ascii=False)
