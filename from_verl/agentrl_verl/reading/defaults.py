"""verl's own defaults, for what was written for verl: the table in defaults.yaml, by file of verl's and version.

Invariant: a default of verl's never wins over what a file or the command line sets.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any

from agentrl.config.keys import Key, ancestors, schema_keys
from agentrl.config.names import destination, written
from agentrl.core.compatibility import Written
from agentrl.core.errors import UserError
from agentrl.core.foreign import read_beside
from agentrl_verl.reading.distilling import distill
from agentrl_verl.reading.program_settings import Source
from agentrl_verl.reading.versions import VERSIONS, Version, find_version

MARK = "verl_defaults"
"""The key of our files that stand for verl's: the name of verl's file."""
BATCH, MINI_BATCH = "data.train_batch_size", "actor.ppo_mini_batch_size"
TRAINING = ("actor.", "algorithm.", "critic.", "trainer.", "data.train_", "model.enable_", "model.lora_alpha")
"""Keys that answering alone does not read begin so."""
SCORE_ALONE = ("grpo", "rloo", "opo")
"""Estimators whose groups of one have scores for advantages in verl."""
ENGINE_KEYS = ("model_engine", "engine", "optim", "actor.strategy", "actor_rollout_ref.actor.strategy")
"""Settings that choose an engine."""
CONFIG_NAME = re.compile(r"--config-name[= ](\w+)")
NO_LIMIT = 1_000_000
"""Stands for no limit where a key takes no null."""


@cache
def table() -> Mapping[str, Any]:
    """The table as it is written."""
    found: Mapping[str, Any] = read_beside(__file__, "defaults.yaml")
    return found


def file_of(program: str) -> str | None:
    """verl's file that a program of verl's starts from."""
    found: str | None = table()["programs"].get(program)
    return found


def values(file: str, version: str) -> dict[str, Any]:
    """verl's defaults of a version, by today's keys; of a file that is not in the table, none."""
    first = table()["begins_with"].get(file)
    own = {path: _at(value, version) for path, value in table()["files"].get(file, {}).items()}
    return (values(first, version) if first else {}) | own


def by_version(path: str, schema: type) -> Iterator[str]:
    """`0.5 (ppo_trainer, 0.4 to 0.6)` for each default of a key that is not ours."""
    trains_on_rewards = "reward.timeout" in schema_keys(schema)
    for file, own in table()["files"].items():
        if path not in own or file.startswith("sft_trainer") == trains_on_rewards:
            continue
        per_version = [(version, _at(own[path], version)) for version in VERSIONS]
        for value, group in groupby(per_version, key=itemgetter(1)):
            span = [version for version, _ in group]
            versions = "" if len(span) == len(VERSIONS) else f", {span[0]} to {span[-1]}"
            yield f"{written(value)} ({file}{versions})"


def _at(value: Any, version: str) -> Any:
    """The value of a version, where it is written by version: the newest that is not newer."""
    if not isinstance(value, dict):
        return value
    at = VERSIONS.index(version)
    return value[max((since for since in value if VERSIONS.index(since) <= at), key=VERSIONS.index)]


@dataclass(frozen=True)
class VerlDefaults:
    """Those that one configuration is built on."""

    file: str
    """verl's file that stands for itself here: ppo_trainer, ..."""
    version: Version
    given: Mapping[str, Any]
    """Everything that is set, under the names that it was set by."""
    schema: type

    def values(self) -> dict[str, Any]:
        """By key of the schema, those that nothing makes verl pass over."""
        keys = schema_keys(self.schema)
        known = {path: value for path, value in self._of_file().items() if path in keys}
        passed_over = {path for path, settings in table()["unless"].items() if self._has(settings.split())}
        return {path: value for path, value in known.items() if path not in passed_over} | self._fitting(known)

    def _of_file(self) -> dict[str, Any]:
        """Those of verl's file, and of the engine that a setting or the file's name chooses."""
        found = values(self.file, self.version.number)
        for engine in self._engines():
            found |= {path: _at(value, self.version.number) for path, value in table()["engines"][engine].items()}
        return found

    def _engines(self) -> set[str]:
        """Other engines that the file's name or a setting chooses: at most one."""
        named = self.file.removeprefix("ppo_").removesuffix("_trainer")
        return {named, *(str(self.given.get(name)) for name in ENGINE_KEYS)} & {*table()["engines"]}

    def _plain(self) -> dict[str, Any]:
        """What is set, under names without verl's first section."""
        return {name.removeprefix("actor_rollout_ref."): value for name, value in self.given.items()}

    def _has(self, settings: Iterable[str]) -> bool:
        given = self._plain()
        turned_on = {name for name, value in given.items() if value not in (None, False, -1)}
        return not turned_on.union(f"{name}={written(value)}" for name, value in given.items()).isdisjoint(settings)

    def finish(self, config: Any, settled: Container[str]) -> list[str]:
        """Make the composed `config` what verl makes of it, and return what the person should know.

        In verl's groups of one (`rollout.n=1`) an answer has its score for its advantage, which has a name here. Raises
        UserError where verl would start a server for a generative reward model.
        """
        distill(config, self.given)
        self._require_server(config)
        self._require_detached()
        alpha = self._plain().get("model.lora.alpha")
        if "megatron" in self._engines() and isinstance(alpha, int | float):
            config.model.lora_alpha = float(alpha)
        if self.given.get("algorithm.rollout_is") is False:  # 0.6 measures then, at the level that stands beside it
            correction = config.algorithm.rollout_correction
            correction.rollout_is = correction.rollout_token_veto_threshold = None
        notes = self.notes(config, settled) + self._ignored_mean(config)
        estimator = _get(config, "algorithm.adv_estimator")
        if estimator not in SCORE_ALONE or config.rollout.n > 1:
            return notes
        config.algorithm.adv_estimator = "reward"
        alone = (
            f"algorithm.adv_estimator={estimator} with rollout.n=1 is algorithm.adv_estimator=reward here: alone in "
            "its group, an answer has its score for its advantage; agentrl would take rollout.n=8"
        )
        return [*notes, alone]

    def _require_server(self, config: Any) -> None:
        """With an engine of its own, the reward model is one that the reward function asks."""
        served = any(name.endswith("reward_model.rollout.name") for name in self.given)
        classifies = _get(config, "reward.reward_model.classifies")
        if served and classifies and config.reward.custom_reward_function.path:
            raise UserError(
                "reward.reward_model: verl starts a server of it, which the reward function asks; start one (`agentrl "
                "gateway`, SGLang or vLLM), and set reward.reward_model.url to its HOST:PORT"
            )

    def _require_detached(self) -> None:
        """Heads that predict several tokens, which are not trained here, change no gradient of the layers below."""
        given = self._plain()
        if given.get("model.mtp.enable_train") is True and given.get("model.mtp.detach_encoder") is not True:
            raise UserError(
                "model.mtp.enable_train: its loss also trains the layers below, which is missing; set it to false, or "
                "model.mtp.detach_encoder=true"
            )

    def _ignored_mean(self, config: Any) -> list[str]:
        """Before 0.9, verl's gspo has a mean of its own, whatever is set."""
        mode = _get(config, "actor.loss_agg_mode")
        before = VERSIONS.index(self.version.number) < VERSIONS.index("0.9")
        if mode is None or not before or _get(config, "actor.policy_loss.loss_mode") != "gspo":
            return []
        config.actor.loss_agg_mode = None
        return [
            f"actor.loss_agg_mode={mode} does nothing in verl {self.version.number} with gspo: null is the same here"
        ]

    def _shown(self, path: str, value: Any) -> str:
        if value == NO_LIMIT:
            return f"{path}={value} (no limit)"
        verls = self._of_file()[path]
        fitted = "" if value == verls else f" (verl's {written(verls)} does not fit {BATCH})"
        return f"{path}={written(value)}{fitted}"

    def _fitting(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """A mini-batch that fits a smaller batch. verl takes the whole batch then, or stops."""
        batch = self._number(BATCH)
        if MINI_BATCH not in known or batch is None or batch % known[MINI_BATCH] == 0:
            return {}
        return {MINI_BATCH: max(size for size in range(1, known[MINI_BATCH] + 1) if batch % size == 0)}

    def _number(self, path: str) -> int | None:
        keys = schema_keys(self.schema)
        found = [value for name, value in self.given.items() if destination(name, keys) == path]
        return found[-1] if found and isinstance(found[-1], int) and found[-1] > 0 else None

    def notes(self, config: Any, settled: Container[str]) -> list[str]:
        """What the person should know: the defaults that count in `config`, and what agentrl would rather take.

        `settled` are today's keys that something else sets.
        """
        in_force = {path: value for path, value in self.values().items() if path not in settled}
        keys = schema_keys(self.schema)
        trains = not hasattr(config, "evaluation")
        counting = {
            path: value
            for path, value in in_force.items()
            if value != keys[path].default and _counts(path, config, keys) and (trains or not path.startswith(TRAINING))
        }
        listed = ", ".join(self._shown(path, value) for path, value in counting.items())
        which = f"verl {self.version.number}'s defaults ({self.version.reason})"
        critic = "; the critic starts from model.path" if _new_critic(config, counting) else ""
        lines = [f"{which} for what is not set: {listed or 'none that matter'}{critic}"]
        advice = [table()["advice"].get(f"{path}={written(value)}") for path, value in counting.items()]
        if advised := [text for text in advice if text]:
            lines.append(f"agentrl would take {'; '.join(advised)}")
        return lines


def _counts(path: str, config: Any, keys: Mapping[str, Key]) -> bool:
    """Whether a default is of use with the other settings."""
    partners = [table()["counts_with"].get(above) for above in ancestors(path)]
    return all(_get(config, partner) != keys[partner].default for partner in partners if partner)


def of_configuration(written: Written) -> VerlDefaults | None:
    """Those of a run, where its file starts from one of verl's or a program of verl's is run; else None."""
    program = written.program
    file = written.tree.get(MARK) or (file_of(program) if program else None)
    if file is None:
        return None
    names = [program, *written.given] if program else [*written.given]
    return VerlDefaults(file, find_version(written.folders, names, file), written.given, written.schema)


def of_source(source: Source, schema: type) -> VerlDefaults | None:
    """Those of a script that runs one of verl's programs, or of a YAML file that lists one of verl's; else None.

    Raises UserError where the environment names a version that cannot be.
    """
    listed = [name for _, name in source.includes if name in table()["files"]]
    chosen = CONFIG_NAME.search(" ".join(source.words))
    named = [chosen[1]] if chosen and chosen[1] in table()["begins_with"] else []
    file = next(filter(None, [*named, file_of(source.program), *listed]), None)
    if file is None:
        return None
    given = {given.path: given.value for given in source.settings}
    places = dict.fromkeys(given.file for given in source.settings)
    return VerlDefaults(file, find_version(places, [source.program, *given], file), given, schema)


def _new_critic(config: Any, counting: Container[str]) -> bool:
    """Whether a critic is made that nobody asked for by name, of a model that nobody named."""
    return "algorithm.adv_estimator" in counting and config.critic.model.path is None


def _get(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name, None)
    return config
