"""A run in Trackio's local store, written with Trackio's own library."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gpu_engine.common.errors import UserError
from gpu_engine.export.needed import load
from gpu_engine.export.row import About, Anew, Names, Row

_TOGETHER = 500
"""Rows that are written in one transaction."""


class Trackio:
    """Writes a run into a project. A run of the same id that is there already is replaced."""

    def __init__(self, project: str) -> None:
        """Raises UserError if Trackio is not installed."""
        trackio, storage = load("trackio", "trackio", "trackio.sqlite_storage")
        self._api, self._store = trackio.Api(), storage.SQLiteStorage
        self._project = project
        self._names = Names()
        self._rows: list[Row] = []
        self._config: Mapping[str, Any] = {}
        self._begun = False

    def begin(self, about: About) -> None:
        """Take away what an earlier export has written. Raises UserError."""
        self._id, self._name = about.unique, about.title
        self._config = {**about.config, "gpu_panel": {
            "run": about.id, "tags": list(about.tags), "note": about.note}}
        try:
            self._store.validate_project_name(self._project)
            self._store.init_db(self._project)
        except ValueError as err:
            raise UserError(f"{self._project}: {err}") from None
        self._rows.clear()
        self._remove()
        self._begun = True

    def write(self, row: Row) -> None:
        self._rows.append(row)
        if len(self._rows) >= _TOGETHER:
            self.publish()

    def rewind(self, step: int) -> None:
        raise Anew

    def publish(self) -> None:
        rows, self._rows = self._rows, []
        if not rows:
            return
        try:
            self._store.bulk_log(
                self._project, self._name,
                [self._names.values(row) | {"attempt": row.attempt} for row in rows],
                steps=[row.step for row in rows],
                timestamps=[datetime.fromtimestamp(row.t, UTC).isoformat() for row in rows],
                config=dict(self._config) or None, run_id=self._id)
        except (sqlite3.Error, TimeoutError) as err:
            raise OSError(None, f"Trackio's store can't be written ({err})") from None
        self._config = {}

    def close(self) -> str:
        self.publish()
        return f"project {self._project}, run {self._name}; trackio show --project " \
            f"{self._project} opens it"

    def abandon(self) -> None:
        if self._begun:
            self._remove()

    def _remove(self) -> None:
        for run in self._api.runs(self._project):
            if run.id == self._id:
                run.delete()
