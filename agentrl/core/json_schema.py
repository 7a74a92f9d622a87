"""JSON Schemas that others wrote.

Invariants:
- nothing is fetched: a reference leads within its document, or the schema is refused;
- a check ends after SECONDS, also one of a schema that doubles at each level or of a pattern that never ends.
"""

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from itertools import islice
from typing import Any

import regex
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend
from jsonschema_specifications import REGISTRY
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from agentrl.core import json_text

SECONDS = 1.0
"""Processor time of a check."""
MOST_BYTES = 2**18
"""Size of a schema."""
STEPS = 64
"""Descents between two looks at the clock."""
LONGEST_PATTERN = 1_000
MOST_COMPARED = 500
"""Items that are compared with one another, where they cannot be sorted."""
MOST_ERRORS = 100
REFERENCES = ("$ref", "$dynamicRef")

Json = Mapping[str, Any]


class WrongSchema(ValueError):
    """A schema that cannot be used, in one line."""

    def __init__(self, text: str, place: str = "", value: Any = None) -> None:
        super().__init__(text)
        self.place, self.value = place, value
        """The place of the mistake, as `properties.x.type`, and its content."""


class Unchecked(Exception):
    """A value that cannot be checked: it would take too long, or the schema's arithmetic fails."""


class Schema:
    """A compiled schema."""

    def __init__(self, written: Any) -> None:
        self._clock = threading.local()
        self._validator = self._kind()(written, registry=REGISTRY)

    def errors(self, value: Any) -> list[ValidationError]:
        """The first mistakes of a value. Raises Unchecked."""
        self._clock.until, self._clock.steps = time.thread_time() + SECONDS, 0
        try:
            return list(islice(self._validator.iter_errors(value), MOST_ERRORS))
        except Exception as error:  # multipleOf of a huge integer, a schema that refers to itself
            raise Unchecked(f"{type(error).__name__}: {error}") from error

    def _kind(self) -> Any:
        """A class of jsonschema's whose every descent, and every keyword that may take long, watches the time."""
        of = Draft202012Validator.VALIDATORS
        own = {
            "pattern": self._pattern,
            "patternProperties": self._patterned,
            "additionalProperties": lambda *given: self._additional(of["additionalProperties"], *given),
            "uniqueItems": lambda *given: self._unique(of["uniqueItems"], *given),
        }
        kind: Any = extend(Draft202012Validator, own)
        evolve = kind.evolve

        def evolved(validator: Any, **changes: Any) -> Any:
            self._clock.steps += 1
            if not self._clock.steps % STEPS:
                self._seconds_left()
            schema = changes.get("schema")
            if isinstance(schema, dict) and "$schema" in schema:  # it would choose another class
                changes["schema"] = {key: value for key, value in schema.items() if key != "$schema"}
            return evolve(validator, **changes)

        kind.evolve = evolved
        return kind

    def _seconds_left(self) -> float:
        left = self._clock.until - time.thread_time()
        if left <= 0:
            raise TimeoutError(f"the check takes more than {SECONDS:g} s")
        return left

    def _found(self, pattern: str, text: str) -> bool:
        return regex.search(pattern, text, timeout=self._seconds_left()) is not None

    def _pattern(self, validator: Any, pattern: str, value: Any, _: Any) -> Iterator[ValidationError]:
        if isinstance(value, str) and not self._found(pattern, value):
            yield ValidationError(f"{value!r} does not match {pattern!r}")

    def _patterned(self, validator: Any, patterns: Json, value: Any, _: Any) -> Iterator[ValidationError]:
        for pattern, schema in patterns.items():
            for name in value if isinstance(value, dict) else ():
                if self._found(pattern, name):
                    yield from validator.descend(value[name], schema, path=name, schema_path=pattern)

    def _additional(self, original: Any, validator: Any, rule: Any, value: Any, schema: Json) -> Any:
        patterns = schema.get("patternProperties")
        if patterns and isinstance(value, dict):
            value = {name: v for name, v in value.items() if not any(self._found(each, name) for each in patterns)}
            schema = {key: each for key, each in schema.items() if key != "patternProperties"}
        return original(validator, rule, value, schema)

    def _unique(self, original: Any, validator: Any, rule: Any, value: Any, schema: Json) -> Any:
        kinds = {type(item) for item in value} if isinstance(value, list) else set()
        if len(kinds) and not kinds <= {str} and not kinds <= {int, float} and len(value) > MOST_COMPARED:
            raise TimeoutError(f"uniqueItems of more than {MOST_COMPARED} items")
        return original(validator, rule, value, schema)


def compiled(written: Any) -> Schema:
    """The schema, checked. Raises WrongSchema."""
    return _compiled(json_text.encoded(written))


@lru_cache(maxsize=128)
def _compiled(text: bytes) -> Schema:
    if len(text) > MOST_BYTES:
        raise WrongSchema(f"it is larger than {MOST_BYTES >> 10} KiB")
    written = json.loads(text)
    try:
        wrong = best_match(_meta().errors(written))
        if wrong is not None:
            place, shown = ".".join(map(str, wrong.absolute_path)), repr(wrong.instance)[:100]
            raise WrongSchema(f"{place[:200] or 'it'} is {shown}: {wrong.message[:200]}", place, wrong.instance)
        _check_nodes(written)
        return Schema(written)
    except WrongSchema:
        raise
    except (Unchecked, RecursionError) as error:
        raise WrongSchema(f"it is too large, or nested too deeply: {str(error)[:200]}") from error
    except Exception as error:  # a library's, on a schema that it does not expect
        raise WrongSchema(f"it cannot be read: {type(error).__name__}: {str(error)[:200]}") from error


@cache
def _meta() -> Schema:
    return Schema(Draft202012Validator.META_SCHEMA)


def _check_nodes(written: Any) -> None:
    """Check the references and the patterns of all schemas within one. Raises WrongSchema."""
    root = DRAFT202012.create_resource(written)
    registry = REGISTRY.with_resource("", root).crawl()
    waiting, seen = [(registry.resolver(), root)], set()
    keys: set[str] = set()
    while waiting:
        resolver, resource = waiting.pop()
        node = resource.contents
        if not isinstance(node, Mapping) or id(node) in seen:
            continue
        seen.add(id(node))
        keys.update(node)
        _check_patterns([node.get("pattern"), *(node.get("patternProperties") or ())])
        inner = resolver.in_subresource(resource)
        for reference in filter(None, map(node.get, REFERENCES)):
            found = _target(inner, reference)
            waiting.append((found.resolver, DRAFT202012.create_resource(found.contents)))
        waiting += [(inner, each) for each in resource.subresources()]
    if {"patternProperties", "unevaluatedProperties"} <= keys:
        raise WrongSchema("patternProperties and unevaluatedProperties are not checked together: leave one out")


def _target(resolver: Any, reference: str) -> Any:
    try:
        return resolver.lookup(reference)
    except (Unresolvable, ValueError) as error:
        why = "leads nowhere" if reference.startswith("#") else "leads out of the schema, and nothing is fetched"
        raise WrongSchema(f"$ref {reference[:200]!r} {why}: describe its target under $defs") from error


def _check_patterns(patterns: Iterable[Any]) -> None:
    for pattern in filter(None, patterns):
        if len(pattern) > LONGEST_PATTERN:
            raise WrongSchema(f"a pattern has more than {LONGEST_PATTERN} characters")
        try:
            regex.compile(pattern)
        except (regex.error, RecursionError, OverflowError) as error:
            raise WrongSchema(f"the pattern {pattern[:200]!r} is no regular expression: {error}") from error


def leaves(errors: Iterable[ValidationError]) -> Iterator[ValidationError]:
    """The mistakes behind mistakes: those of all choices where none fits."""
    for error in errors:
        if error.context:
            yield from leaves(error.context)
        else:
            yield error


class Outlines:
    """Parts of one compiled document, each in plain keywords: references followed, `allOf` in one, choices that are
    words or null taken together. Each part is read once, so references may form circles."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._known: dict[int, tuple[Json, dict[str, Any]]] = {}

    def of(self, part: Any) -> dict[str, Any]:
        """The outline of a part; {} for one that says nothing."""
        if not isinstance(part, Mapping):
            return {}
        if id(part) not in self._known:
            self._known[id(part)] = part, {}  # of a circle
            self._known[id(part)] = part, self._read(part)
        return self._known[id(part)][1]

    def _read(self, part: Json) -> dict[str, Any]:
        own = {key: value for key, value in part.items() if key not in ("$ref", "allOf", "anyOf", "oneOf", "const")}
        if "const" in part:
            own = {"enum": [part["const"]]} | own
        for more in [self._target(part.get("$ref")), *_listed(part.get("allOf"))]:
            inner = self.of(more)
            fields = {**inner.get("properties", {}), **own.get("properties", {})}
            own = {**inner, **own, **({"properties": fields} if fields else {})}
        for choices in map(_listed, (part.get("anyOf"), part.get("oneOf"))):
            own = {**_together([self.of(choice) for choice in choices]), **own}
        return own

    def _target(self, reference: Any) -> Any:
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found = self.root
        for step in filter(None, reference[1:].split("/")):
            name = step.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _together(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """Several outlines as one."""
    some = [choice for choice in choices if choice.get("type") != "null" and choice.get("enum") != [None]]
    if len(some) == 1:
        return some[0]
    if some and all("enum" in choice for choice in some):
        return {"enum": [word for choice in some for word in choice["enum"]]}
    kinds = [choice.get("type") for choice in some]
    return {"type": list(dict.fromkeys(kinds))} if kinds and all(isinstance(kind, str) for kind in kinds) else {}
