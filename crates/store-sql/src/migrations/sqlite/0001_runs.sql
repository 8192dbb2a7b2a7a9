-- A run is in exactly one of scheduled, ready, lease and done; which one is its state. A row of `run`
-- never changes. There are no foreign keys: the moves between the four tables are single
-- transactions, and checking every row again would cost more than the moves themselves.
-- Times are microseconds since 1970, ids are 16 bytes, JSON is text.

create table run (
  id blob not null primary key,
  kind text not null,
  task text not null,
  queue text not null,
  priority integer not null,
  input text not null,
  policy text not null,
  unique_key text,
  created_at integer not null,
  run_at integer
) without rowid;

-- The key is the order in which a lane (queue, task) is claimed; rank is the negative priority.
create table ready (
  queue text not null,
  task text not null,
  rank integer not null,
  run_id blob not null,
  attempt integer not null,
  tries integer not null,
  losses integer not null,
  primary key (queue, task, rank, run_id)
) without rowid;

create table scheduled (
  run_id blob not null primary key,
  run_at integer not null,
  attempt integer not null,
  tries integer not null,
  losses integer not null
) without rowid;
create index scheduled_due on scheduled (run_at, run_id);

create table lease (
  run_id blob not null primary key,
  replica_id blob not null,
  worker_id text,
  attempt integer not null,
  tries integer not null,
  losses integer not null,
  token blob not null,
  granted_at integer not null,
  last_heartbeat_at integer not null,
  cancel_requested_at integer
) without rowid;
create index lease_cancel on lease (replica_id, run_id) where cancel_requested_at is not null;

-- `outcome` and what follows describe the attempt that ended the run; they are null for a run that
-- was cancelled before it ran.
create table done (
  run_id blob not null primary key,
  state text not null,
  finished_at integer not null,
  attempt integer not null,
  tries integer not null,
  losses integer not null,
  result text,
  error text,
  outcome text,
  replica_id blob,
  worker_id text,
  token blob,
  started_at integer,
  last_heartbeat_at integer,
  verdict_id blob
) without rowid;
create index done_unsuccessful on done (state, run_id) where state <> 'succeeded';

-- Ended attempts, but for the last one of a finished run, which is in `done`.
create table attempt (
  run_id blob not null,
  attempt integer not null,
  outcome text not null,
  replica_id blob not null,
  worker_id text,
  token blob not null,
  started_at integer not null,
  ended_at integer not null,
  last_heartbeat_at integer,
  error text,
  verdict_id blob,
  primary key (run_id, attempt)
) without rowid;

create table run_sign (
  run_id blob not null primary key,
  progress text,
  checkpoint text
) without rowid;

create table unique_key (
  key text not null primary key,
  run_id blob not null
) without rowid;

create table idempotency (
  key text not null primary key,
  fingerprint text not null,
  run_ids blob not null,
  created_at integer not null
) without rowid;

create table replica (
  id blob not null primary key,
  host text not null,
  version text not null,
  state text not null,
  beat integer not null,
  started_at integer not null,
  last_heartbeat_at integer not null,
  heartbeat_interval_us integer not null,
  heartbeat_timeout_us integer not null,
  clock_skew_ms integer not null
) without rowid;

create table verdict (
  id blob not null primary key,
  at integer not null,
  subject_kind text not null,
  subject_id text not null,
  judgement text not null,
  reason text not null,
  evidence text not null,
  judged_by blob not null,
  run_id blob,
  attempt integer,
  followed_by text not null
) without rowid;
create index verdict_run on verdict (run_id, id);
create index verdict_subject on verdict (subject_id, id);

-- One row per write, whatever the number of runs in it; `body` has one line per event.
create table event (
  batch integer primary key autoincrement,
  at integer not null,
  body text not null
);

create table queue (
  name text not null primary key,
  paused integer not null
) without rowid;

create table task (
  name text not null primary key
) without rowid;

create table sweep_run (
  name text not null primary key,
  last_at integer not null
) without rowid;
