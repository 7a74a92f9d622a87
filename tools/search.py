"""Searches your own corpus, ranked by BM25 (Robertson and Zaragoza, 2009) with the bm25s library.

Shows: the index is built once, in `__init__`, and shared by all trajectories; `execute` is a plain method, so queries
run in threads. The corpus is a jsonl file of {"title": ..., "text": ...}; tools/corpus.jsonl describes an invented
country, so no model knows the answers.
"""

import json
from pathlib import Path
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.resources import find
from agentrl.tools import BaseTool

NOTHING = "Nothing found. Try other words."


class Search(BaseTool):
    """config: `corpus` (jsonl file), `top_k` (passages per query, 3)."""

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        super().__init__(config, tool_schema)
        self.passages = read_corpus(config.get("corpus"))
        self.top_k = int(config.get("top_k", 3))
        self.index = build_index(self.passages)

    def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        """The passages that match the query best, best first."""
        found = self.find(parameters["query"])
        return "\n\n".join(found) or NOTHING, 0.0, {"passages": len(found)}

    def find(self, query: str) -> list[str]:
        """At most `top_k` passages that share a word with the query."""
        import bm25s

        words = bm25s.tokenize(query, stopwords="en", show_progress=False, return_ids=False)
        if not words[0]:
            return []
        k = min(self.top_k, len(self.passages))
        places, scores = self.index.retrieve(words, k=k, show_progress=False)
        return [self.passages[i] for i, score in zip(places[0], scores[0], strict=True) if score > 0]


def read_corpus(path: Any) -> list[str]:
    """The passages, title first. Raises UserError."""
    if not path:
        raise UserError("config.corpus is missing: name a jsonl file of {title, text}")
    file: Path = find(path, what="config.corpus")
    passages = [_passage(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not passages:
        raise UserError(f"config.corpus: {file} is empty: write one {{title, text}} a line")
    return passages


def build_index(passages: list[str]) -> Any:
    """The BM25 index. Raises UserError without the library."""
    try:
        import bm25s
    except ImportError as error:
        raise UserError("tool search needs bm25s: pip install 'agentrl[search]'") from error
    index = bm25s.BM25()
    index.index(bm25s.tokenize(passages, stopwords="en", show_progress=False), show_progress=False)
    return index


def _passage(entry: dict[str, Any]) -> str:
    # Other retrieval corpora have title and text in one field, "contents".
    return entry.get("contents") or f"{entry.get('title', '')}\n{entry['text']}".strip()
