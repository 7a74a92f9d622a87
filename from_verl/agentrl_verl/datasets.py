"""verl's dataset class for those who derive from it: its attributes, its hooks, and rows in verl's layout.

Prompts are not tokenized here, and nothing is filtered: agentrl does both, the same for every kind of dataset.
"""

import copy
from typing import Any

import torch
from torch.utils.data import Dataset

from agentrl.data.files import paths, read_records
from agentrl.data.plain import plain
from agentrl_verl.data_proto import object_array


class RLHFDataset(Dataset[dict[str, Any]]):
    """Rows of parquet or JSON files. Override `_read_files_and_tokenize` (which sets `self.dataframe`: anything with
    len() and rows that are mappings), `_build_messages` or `__getitem__`."""

    def __init__(
        self, data_files: Any, tokenizer: Any, config: Any, processor: Any = None, max_samples: int = -1, **_: Any
    ) -> None:
        self.data_files = [data_files] if isinstance(data_files, str) else list(data_files)
        self.original_data_files = copy.copy(self.data_files)
        self.tokenizer, self.processor, self.config, self.max_samples = tokenizer, processor, config, max_samples
        get = config.get
        self.prompt_key = get("prompt_key", "prompt")
        self.image_key, self.video_key = get("image_key", "images"), get("video_key", "videos")
        self.max_prompt_length = get("max_prompt_length", 1024)
        self.truncation = get("truncation", "error")
        self.filter_overlong_prompts = get("filter_overlong_prompts", True)
        self.apply_chat_template_kwargs = get("apply_chat_template_kwargs", {})
        self.return_raw_chat, self.return_full_prompt = get("return_raw_chat", True), get("return_full_prompt", False)
        self.need_tools_kwargs = get("need_tools_kwargs", False)
        self.num_workers = get("filter_overlong_prompts_workers", 1)
        self.shuffle, self.seed, self.use_shm = get("shuffle", False), get("seed"), get("use_shm", False)
        self.cache_dir = get("cache_dir", "~/.cache/verl/rlhf")
        self.serialize_dataset = False
        self.dataframe: Any = []
        self._download()
        self._read_files_and_tokenize()

    def _download(self, use_origin_parquet: bool = False) -> None:
        """Files are on this machine already."""

    def _read_files_and_tokenize(self) -> None:
        """Set `self.dataframe`: a datasets.Dataset where that package is installed, which subclasses may expect."""
        self.dataframe = self.maybe_filter_out_long_prompts(_dataframe(self.data_files))
        if 0 < self.max_samples < len(self.dataframe):
            self.dataframe = [self.dataframe[i] for i in range(self.max_samples)]

    def maybe_filter_out_long_prompts(self, dataframe: Any = None) -> Any:
        """All of them: data.filter_overlong_prompts is seen to when all rows are there."""
        return dataframe

    def __len__(self) -> int:
        return len(self.dataframe)

    def __getitem__(self, item: int) -> dict[str, Any]:
        """The row, its messages as `raw_prompt`, and what verl lifts out of `extra_info`."""
        row: dict[str, Any] = dict(self.dataframe[item])
        row["raw_prompt"] = self._build_messages(row)
        extra_info = row["extra_info"] = dict(row.get("extra_info") or {})
        row["index"] = extra_info.get("index", 0)
        row["tools_kwargs"] = extra_info.get("tools_kwargs") or {}
        row["interaction_kwargs"] = extra_info.get("interaction_kwargs") or {}
        return row

    def _build_messages(self, example: dict[str, Any]) -> list[dict[str, Any]]:
        """The row's messages; `<image>` and `<video>` stay, agentrl fills them from the row's columns."""
        prompt = example.get(self.prompt_key)
        return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else plain(prompt)


def collate_fn(data_list: list[dict[str, Any]]) -> dict[str, Any]:
    """Tensors stacked [B, ...], all else as object arrays [B]."""
    names = dict.fromkeys(name for row in data_list for name in row)
    columns = {name: [row[name] for row in data_list] for name in names}
    return {
        name: torch.stack(values) if all(isinstance(value, torch.Tensor) for value in values) else object_array(values)
        for name, values in columns.items()
    }


def process_image(image: Any, **_: Any) -> Any:
    """A PIL image of a row's image, whichever form it has."""
    from agentrl.chat.media.sources import open_image

    return open_image(image, factor=None, bounds=(0, 0))


def _dataframe(files: list[str]) -> Any:
    try:
        import datasets  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return [dict(record) for file in paths(files, "data.train_files") for record in read_records(file)]
    kinds = {file: "parquet" if file.endswith(".parquet") else "json" for file in files}
    parts = [datasets.load_dataset(kind, data_files=file)["train"] for file, kind in kinds.items()]
    return datasets.concatenate_datasets(parts)
