"""The schema of a run's database: one coherent set of append-only tables for every method.

Column rules, the same everywhere: `id` counts 1, 2, 3, ... without gaps. A *text* column (type ANY) holds the text
itself or, where it is long or no valid UTF-8, the id of the blob that holds it. A *digest* column (type ANY) holds 32
bytes where the value is 64 hex digits, and the text itself otherwise. A *number* column (type ANY) holds a real, NULL
for none, or the text 'nan'.

`evaluation.program` is NULL where it is the candidate's own.

`link` is the chain, one row per commit: `hashes` holds for each row written the code of its table and its link, then
code 0 and the link of the commit itself; `marks` holds one check byte per column of these rows, by which a change is
located.
"""

from __future__ import annotations

VERSION = 2

TABLES = (
    "run",
    "blob",
    "program",
    "trace",
    "tombstone",
    "plan",
    "proposal",
    "instance",
    "trial",
    "candidate",
    "edge",
    "evaluation",
    "measured",
    "judgement",
    "verdict",
    "record",
    "event",
    "message",
    "call",
    "reply",
)
"""Tables whose every row is a link of the chain. A table's code is its position here, from 1: only append."""
_NEW_IN_2 = ("call", "reply")

DDL = """
CREATE TABLE run(id INTEGER PRIMARY KEY CHECK(id = 1), version TEXT NOT NULL, seed TEXT NOT NULL, config ANY NOT NULL,
  record_kinds ANY NOT NULL) STRICT;
CREATE TABLE blob(id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, size INTEGER NOT NULL,
  packed BLOB NOT NULL) STRICT;
CREATE TABLE program(id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, base INTEGER REFERENCES program(id),
  manifest BLOB NOT NULL, CHECK(base < id)) STRICT;
CREATE TABLE trace(id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, size INTEGER NOT NULL,
  packed_digest BLOB NOT NULL, place TEXT NOT NULL CHECK(place IN ('database', 'file'))) STRICT;
CREATE TABLE trace_data(id INTEGER PRIMARY KEY REFERENCES trace(id), packed BLOB NOT NULL) STRICT;
CREATE TABLE tombstone(id INTEGER PRIMARY KEY, trace INTEGER NOT NULL UNIQUE REFERENCES trace(id), digest BLOB NOT NULL,
  size INTEGER NOT NULL) STRICT;
CREATE TABLE plan(id INTEGER PRIMARY KEY, number INTEGER NOT NULL UNIQUE, after INTEGER NOT NULL, origin TEXT NOT NULL,
  kind TEXT NOT NULL, body ANY NOT NULL) STRICT;
CREATE TABLE proposal(id INTEGER PRIMARY KEY, plan INTEGER NOT NULL REFERENCES plan(number), idx INTEGER NOT NULL,
  program INTEGER REFERENCES program(id), name ANY NOT NULL, outcome TEXT NOT NULL, failure ANY NOT NULL,
  log ANY NOT NULL, claim ANY NOT NULL, edges ANY NOT NULL, UNIQUE(plan, idx)) STRICT;
CREATE TABLE instance(id INTEGER PRIMARY KEY, split TEXT NOT NULL, dataset ANY NOT NULL, name ANY NOT NULL) STRICT;
CREATE TABLE trial(id INTEGER PRIMARY KEY, key ANY NOT NULL, program ANY NOT NULL,
  instance INTEGER NOT NULL REFERENCES instance(id), repeat INTEGER NOT NULL, purpose TEXT NOT NULL,
  outcome TEXT NOT NULL, score ANY, correct INTEGER, costs ANY NOT NULL, message ANY NOT NULL,
  output ANY NOT NULL, trace ANY NOT NULL, detail ANY NOT NULL, trials INTEGER NOT NULL,
  cpu_ms INTEGER NOT NULL, wall_ms INTEGER NOT NULL,
  calls INTEGER NOT NULL, tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL, micro_usd INTEGER,
  CHECK((outcome = 'ok') = (score IS NOT NULL))) STRICT;
CREATE UNIQUE INDEX trial_key ON trial(key, purpose) WHERE outcome <> 'infra';
CREATE INDEX trial_program ON trial(program);
CREATE TABLE candidate(id INTEGER PRIMARY KEY, plan INTEGER NOT NULL REFERENCES plan(number), idx INTEGER NOT NULL,
  program ANY NOT NULL, name ANY NOT NULL, operator ANY NOT NULL, status TEXT NOT NULL, outcome TEXT NOT NULL,
  reason ANY NOT NULL, log ANY NOT NULL, claim ANY NOT NULL, UNIQUE(plan, idx)) STRICT;
CREATE TABLE edge(id INTEGER PRIMARY KEY, candidate INTEGER NOT NULL REFERENCES candidate(id), kind TEXT NOT NULL,
  source INTEGER NOT NULL REFERENCES candidate(id), detail ANY NOT NULL, CHECK(source < candidate)) STRICT;
CREATE INDEX edge_candidate ON edge(candidate);
CREATE TABLE evaluation(id INTEGER PRIMARY KEY, candidate INTEGER NOT NULL REFERENCES candidate(id),
  split TEXT NOT NULL, rung INTEGER NOT NULL, planned INTEGER NOT NULL, passed INTEGER NOT NULL,
  program ANY, value ANY, instances ANY NOT NULL, vals BLOB NOT NULL, costs ANY NOT NULL,
  per_dataset ANY NOT NULL, failures ANY NOT NULL) STRICT;
CREATE INDEX evaluation_candidate ON evaluation(candidate);
CREATE TABLE measured(id INTEGER PRIMARY KEY, plan INTEGER NOT NULL REFERENCES plan(number),
  candidate INTEGER NOT NULL REFERENCES candidate(id), data ANY NOT NULL, UNIQUE(plan, candidate)) STRICT;
CREATE TABLE judgement(id INTEGER PRIMARY KEY, plan INTEGER NOT NULL UNIQUE REFERENCES plan(number)) STRICT;
CREATE TABLE verdict(id INTEGER PRIMARY KEY, judgement INTEGER NOT NULL REFERENCES judgement(id),
  candidate INTEGER NOT NULL REFERENCES candidate(id), klass ANY NOT NULL, reason ANY NOT NULL,
  champion INTEGER NOT NULL, facts ANY NOT NULL) STRICT;
CREATE INDEX verdict_judgement ON verdict(judgement);
CREATE TABLE record(id INTEGER PRIMARY KEY, judgement INTEGER NOT NULL REFERENCES judgement(id), kind TEXT NOT NULL,
  subject ANY NOT NULL, data ANY NOT NULL) STRICT;
CREATE INDEX record_judgement ON record(judgement);
CREATE TABLE event(id INTEGER PRIMARY KEY, kind TEXT NOT NULL, data ANY NOT NULL) STRICT;
CREATE TABLE message(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, kind ANY NOT NULL, data ANY NOT NULL,
  fault ANY NOT NULL) STRICT;
CREATE TABLE link(id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, hashes BLOB NOT NULL, marks BLOB NOT NULL) STRICT;
"""

DDL_2 = """
CREATE TABLE call(id INTEGER PRIMARY KEY, role TEXT NOT NULL, plan INTEGER NOT NULL, candidate ANY NOT NULL,
  scope ANY NOT NULL, request ANY NOT NULL, occurrence INTEGER NOT NULL, model ANY NOT NULL, instance ANY NOT NULL,
  share ANY NOT NULL, bound INTEGER NOT NULL, bound_micro_usd INTEGER, body ANY NOT NULL) STRICT;
CREATE INDEX call_scope ON call(scope, request, occurrence);
CREATE INDEX call_share ON call(share, request, occurrence) WHERE share <> '';
CREATE TABLE reply(id INTEGER PRIMARY KEY, call INTEGER NOT NULL UNIQUE REFERENCES call(id), status TEXT NOT NULL,
  source TEXT NOT NULL, usage TEXT NOT NULL, attempts INTEGER NOT NULL, uncertain INTEGER NOT NULL,
  logical_in INTEGER NOT NULL, logical_out INTEGER NOT NULL, took_ms INTEGER NOT NULL, message ANY NOT NULL,
  trials INTEGER NOT NULL, cpu_ms INTEGER NOT NULL, wall_ms INTEGER NOT NULL, calls INTEGER NOT NULL,
  tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL, micro_usd INTEGER, body ANY NOT NULL) STRICT;
"""
"""What version 2 added: the model calls. The columns from `trials` to `micro_usd` hold what was paid for the reply."""


def tables_of(version: int) -> tuple[str, ...]:
    """Return the tables of the chain in a database of this schema version."""
    return TABLES if version >= 2 else TABLES[: -len(_NEW_IN_2)]


def statements(version: int = VERSION) -> list[str]:
    """Return every statement that builds an empty database of a schema version, triggers included."""
    out = _split(DDL) + _keep_rows((*tables_of(1), "link"))
    out.append(
        "CREATE TRIGGER trace_data_no_update BEFORE UPDATE ON trace_data "
        "BEGIN SELECT RAISE(ABORT, 'traces are never changed'); END"
    )
    out.append(
        "CREATE TRIGGER trace_data_no_delete BEFORE DELETE ON trace_data "
        "WHEN NOT EXISTS(SELECT 1 FROM tombstone WHERE trace = OLD.id) "
        "BEGIN SELECT RAISE(ABORT, 'a trace is deleted only after its tombstone was written'); END"
    )
    return out + (additions(1) if version >= 2 else [])


def additions(version: int) -> list[str]:
    """Return the statements that bring a database of an older schema version to the present one."""
    return [] if version >= 2 else _split(DDL_2) + _keep_rows(_NEW_IN_2)


def _split(ddl: str) -> list[str]:
    return [text.strip() for text in ddl.split(";\n") if text.strip()]


def _keep_rows(tables: tuple[str, ...]) -> list[str]:
    return [
        f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are never changed or deleted'); END"
        for table in tables
        for verb in ("UPDATE", "DELETE")
    ]
