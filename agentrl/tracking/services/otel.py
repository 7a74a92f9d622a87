"""OpenTelemetry: metrics and spans over OTLP/HTTP, to the collector that the OTEL_* variables name.

A rollout is a trace: `invoke_agent`, its turns, their generations and tool calls, its rewards. A link leads to the span
of its step. Names are those of the conventions for generative AI (`gen_ai.*`); all others begin with `rl.`.
"""

import logging
import os
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any

from agentrl.core.grouping import grouped
from agentrl.core.points import run_logger
from agentrl.tracking.generations import Generation
from agentrl.tracking.services.service import RunInfo, Service
from agentrl.trajectory.outline import turn_sizes
from agentrl.trajectory.trajectory import Outcome, Span, Trajectory

STRANGE = re.compile(r"[^\w.\-]", re.ASCII)
"""Characters that names of instruments do not have."""
NAMES = {"generate": "chat", "score": "rl.reward"}
"""Names of spans by kind; that of another kind is `rl.<kind>`."""
FIRST = iter([True])


def _first(record: logging.LogRecord) -> bool:
    """Whether it is the exporters' first trouble: they retry by themselves, and log each time."""
    record.msg = f"trainer.logger: otel: {record.msg} {OpenTelemetry.fix}, or drop it (shown once)"
    return next(FIRST, False)


@run_logger("otel")
class OpenTelemetry(Service):
    """OTEL_EXPORTER_OTLP_ENDPOINT names the collector, OTEL_TRACES_SAMPLER the share of rollouts that it gets."""

    name = "otel"
    package = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    fix = "check the OTEL_* variables"

    def begin(self, info: RunInfo) -> None:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        for exporter in (OTLPMetricExporter, self.module.OTLPSpanExporter):
            logging.getLogger(exporter.__module__).addFilter(_first)
        service = os.environ.get("OTEL_SERVICE_NAME", info.project)
        resource = Resource.create({"service.name": service, "service.instance.id": self.id, "rl.run": info.name})
        tracing = TracerProvider(resource=resource)
        queue = int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE", 65536))  # the spans of a step come at once
        tracing.add_span_processor(BatchSpanProcessor(self.module.OTLPSpanExporter(), max_queue_size=queue))
        metering = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource)
        self._stack = ExitStack()
        self._stack.callback(tracing.shutdown)
        self._stack.callback(metering.shutdown)
        self._gauge = cache(metering.get_meter("agentrl").create_gauge)
        self._trace, self._tracer = trace, tracing.get_tracer("agentrl")
        self._asks = {"gen_ai.request.model": (info.config.get("model") or {}).get("path")}
        self._step = self._tracer.start_span("rl.step")

    def send(self, step: int, metrics: dict[str, float]) -> None:
        for name, value in (metrics | {"step": step}).items():
            self._gauge("rl." + STRANGE.sub("_", name.replace("/", "."))).set(value)
        self._step.set_attribute("rl.step", step)
        self._step.end()
        self._step = self._tracer.start_span("rl.step")

    def send_table(self, step: int, rows: Sequence[Generation]) -> None:
        """Collectors have no tables."""

    def trajectories(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        for trajectory in () if self._knows(step) else trajectories:
            if trajectory.spans:
                self._rollout(step, trajectory)

    def close(self) -> None:
        self._stack.close()

    def _rollout(self, step: int, trajectory: Trajectory) -> None:
        """The trace of a trajectory."""
        spans = sorted(trajectory.spans, key=lambda span: span.start)
        about = {f"rl.{name}": getattr(trajectory, name) for name in ("outcome", "finish", "turns", "reward")}
        about |= {"gen_ai.conversation.id": trajectory.key, "rl.step": step, "rl.row": trajectory.row.uid}
        root = self._add("invoke_agent", _over(spans), self._asks | about, outcome=trajectory.outcome)
        starts = [span.start for span in spans if span.kind == "generate"]
        sizes = dict(enumerate(size for ledger in trajectory.outlines for size in turn_sizes(ledger)))
        for turn, parts in grouped(spans, lambda span: _turn(span, starts)).items():
            parent = root if turn < 0 else self._add("rl.turn", _over(parts), {"rl.turn": turn}, root)
            for span in parts:
                self._part(span, turn, trajectory, sizes.get(turn, (None, None)), parent)

    def _part(self, span: Span, turn: int, trajectory: Trajectory, size: Sequence[int | None], parent: Any) -> None:
        """A span of a trajectory; `size`: tokens before its turn, and those of the turn."""
        usage = dict(zip(("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"), size, strict=True))
        score = {"gen_ai.evaluation.name": "reward", "gen_ai.evaluation.score.value": trajectory.reward}
        known: dict[str, dict[str, Any]] = {"generate": self._asks | usage, "score": score}
        if span.kind != "tool":
            self._add(NAMES.get(span.kind, f"rl.{span.kind}"), span, known.get(span.kind, {}), parent)
            return
        for call in (call for call in trajectory.calls if call.turn == turn):
            about = {"gen_ai.tool.name": call.name, "rl.turn": turn, "rl.reward": call.reward}
            alone = Span("tool", span.start, span.start + call.seconds)
            self._add("execute_tool", alone, about, parent, call.outcome)

    def _add(
        self, name: str, span: Span, about: Mapping[str, Any], parent: Any = None, outcome: Outcome = Outcome.OK
    ) -> Any:
        """A span that is over; one without a parent begins a trace that is linked to the step."""
        trace, start, end = self._trace, int(span.start * 1e9), int(span.end * 1e9)
        context = None if parent is None else trace.set_span_in_context(parent)
        links = [trace.Link(self._step.get_span_context())] if parent is None else ()
        given = {key: value for key, value in about.items() if value is not None}
        given |= {} if name.startswith("rl.") else {"gen_ai.operation.name": name}
        made = self._tracer.start_span(name, context, attributes=given, links=links, start_time=start)
        if outcome is not Outcome.OK:
            made.set_attribute("error.type", outcome)
            made.set_status(trace.StatusCode.ERROR)
        made.end(end)
        return made


def _over(spans: Sequence[Span]) -> Span:
    """The time from the first to the last of them."""
    return Span(spans[0].kind, spans[0].start, max(span.end for span in spans))


def _turn(span: Span, starts: list[float]) -> int:
    """The turn that a span belongs to, by when the turns begin; -1: none."""
    return -1 if span.kind in ("score", "verify") else bisect_right(starts, span.start) - 1
