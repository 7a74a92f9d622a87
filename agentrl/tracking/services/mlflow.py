"""MLflow: the server that MLFLOW_TRACKING_URI names, or else a database in the run's folder.

`mlflow ui --backend-store-uri sqlite:///<run>/mlflow.db` shows the latter.
"""

import json
import os
import re
import time
from collections.abc import Sequence

from agentrl.core.points import run_logger
from agentrl.tracking.generations import Generation
from agentrl.tracking.services.service import RunInfo, Service

STRANGE = re.compile(r"[^\w\-. :/]", re.ASCII)
"""Characters that MLflow does not take in names."""
BATCH = 1000
"""Metrics that it takes at once."""


@run_logger("mlflow")
class Mlflow(Service):
    """A run of the experiment that is called like the project."""

    name = "mlflow"
    fix = "check MLFLOW_TRACKING_URI, and that sqlalchemy and alembic are installed for a local database"

    def begin(self, info: RunInfo) -> None:
        folder = info.folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder / 'mlflow.db'}"
        self.client = self.module.MlflowClient(uri)
        if not self.resumed:
            self.id = self.client.create_run(self._experiment(info, uri), run_name=info.name).info.run_id
            self.client.log_dict(self.id, dict(info.config), "config.yaml")
        self.client.update_run(self.id, status="RUNNING")

    def send(self, step: int, metrics: dict[str, float]) -> None:
        metric, now = self.module.entities.Metric, int(time.time() * 1000)
        entries = [metric(STRANGE.sub("_", name), value, now, step) for name, value in metrics.items()]
        for start in range(0, len(entries), BATCH):
            self.client.log_batch(self.id, metrics=entries[start : start + BATCH])

    def send_table(self, step: int, rows: Sequence[Generation]) -> None:
        text = json.dumps([row._asdict() for row in rows], ensure_ascii=False, indent=1)
        self.client.log_text(self.id, text, f"generations/{step}.json")

    def close(self) -> None:
        self.client.set_terminated(self.id)

    def _experiment(self, info: RunInfo, uri: str) -> str:
        found = self.client.get_experiment_by_name(info.project)
        if found is not None:
            return str(found.experiment_id)
        place = (info.folder.resolve() / "mlflow").as_uri() if uri.startswith("sqlite:") else None
        return str(self.client.create_experiment(info.project, artifact_location=place))
