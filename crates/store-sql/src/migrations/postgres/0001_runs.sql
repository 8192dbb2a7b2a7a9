-- A run is in exactly one of scheduled, ready, lease and done; which one is its state. A row of `run`
-- never changes. There are no foreign keys: the moves between the four tables are single
-- statements, and a trigger per row would cost more than the moves themselves.
-- Times are microseconds since 1970 by clock_timestamp(), JSON is text. Names compare byte by byte,
-- so that every store orders them alike and no locale is loaded.

create table run (
  id uuid not null primary key,
  kind text collate "C" not null,
  task text collate "C" not null,
  queue text collate "C" not null,
  priority integer not null,
  input text not null,
  policy text not null,
  unique_key text collate "C",
  created_at bigint not null,
  run_at bigint
);

-- The key is the order in which a lane (queue, task) is claimed; rank is the negative priority.
create table ready (
  queue text collate "C" not null,
  task text collate "C" not null,
  rank integer not null,
  run_id uuid not null,
  attempt integer not null,
  tries integer not null,
  losses integer not null,
  primary key (queue, task, rank, run_id)
) with (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000,
  autovacuum_vacuum_cost_delay = 0
);

create table scheduled (
  run_id uuid not null primary key,
  run_at bigint not null,
  attempt integer not null,
  tries integer not null,
  losses integer not null
);
create index scheduled_due on scheduled (run_at, run_id);

-- No index on what a heartbeat updates and half of every page free, so that updates stay in place.
create table lease (
  run_id uuid not null primary key,
  replica_id uuid not null,
  worker_id text,
  attempt integer not null,
  tries integer not null,
  losses integer not null,
  token uuid not null,
  granted_at bigint not null,
  last_heartbeat_at bigint not null,
  cancel_requested_at bigint
) with (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000,
  autovacuum_vacuum_cost_delay = 0
);
create index lease_cancel on lease (replica_id, run_id) where cancel_requested_at is not null;

-- `outcome` and what follows describe the attempt that ended the run; they are null for a run that
-- was cancelled before it ran.
create table done (
  run_id uuid not null primary key,
  state text collate "C" not null,
  finished_at bigint not null,
  attempt integer not null,
  tries integer not null,
  losses integer not null,
  result text,
  error text,
  outcome text collate "C",
  replica_id uuid,
  worker_id text,
  token uuid,
  started_at bigint,
  last_heartbeat_at bigint,
  verdict_id uuid
);
create index done_unsuccessful on done (state, run_id) where state <> 'succeeded';
create index done_finished on done using brin (finished_at);

-- Ended attempts, but for the last one of a finished run, which is in `done`.
create table attempt (
  run_id uuid not null,
  attempt integer not null,
  outcome text collate "C" not null,
  replica_id uuid not null,
  worker_id text,
  token uuid not null,
  started_at bigint not null,
  ended_at bigint not null,
  last_heartbeat_at bigint,
  error text,
  verdict_id uuid,
  primary key (run_id, attempt)
);

create table run_sign (
  run_id uuid not null primary key,
  progress text,
  checkpoint text
) with (fillfactor = 70);

create table unique_key (
  key text collate "C" not null primary key,
  run_id uuid not null
);

create table idempotency (
  key text collate "C" not null primary key,
  fingerprint text not null,
  run_ids uuid[] not null,
  created_at bigint not null
);

create table replica (
  id uuid not null primary key,
  host text not null,
  version text not null,
  state text collate "C" not null,
  beat bigint not null,
  started_at bigint not null,
  last_heartbeat_at bigint not null,
  heartbeat_interval_us bigint not null,
  heartbeat_timeout_us bigint not null,
  clock_skew_ms bigint not null
) with (
  fillfactor = 20,
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500
);

create table verdict (
  id uuid not null primary key,
  at bigint not null,
  subject_kind text collate "C" not null,
  subject_id text collate "C" not null,
  judgement text collate "C" not null,
  reason text not null,
  evidence text not null,
  judged_by uuid not null,
  run_id uuid,
  attempt integer,
  followed_by text not null
);
create index verdict_run on verdict (run_id, id);
create index verdict_subject on verdict (subject_id, id);

-- One row per writing transaction, whatever the number of runs in it; `body` has one line per event.
create table event (
  batch bigint not null primary key,
  at bigint not null,
  body text not null
);
-- Ids hardly compress, and trying costs more than the row.
alter table event alter column body set storage external;

create sequence event_batch;

-- Followers must not pass over a batch that is still being written, and numbers are not committed in
-- their order. So a writer first locks, for the length of its transaction, a key that carries the last
-- number given out: its own will be higher. Whatever is not above the lowest such key has been decided.
create function event_batch_tag() returns bigint language sql stable as
$$ select (hashtext(current_schema())::bigint & 32767) << 48 $$;

create function last_event_batch() returns bigint language sql volatile as
$$ select case when is_called then last_value else last_value - 1 end from event_batch $$;

create function next_event_batch() returns bigint language plpgsql volatile as $$
begin
  perform pg_advisory_xact_lock_shared(event_batch_tag() | last_event_batch());
  return nextval('event_batch');
end $$;

-- Every batch up to the answer is either committed, and seen by whoever asks for it next, or will never
-- come. The last number is read before the locks: a writer that locks later gets a higher one.
create function decided_event_batch() returns bigint language plpgsql volatile as $$
declare
  last bigint := last_event_batch();
  pending bigint;
begin
  select min(((classid::bigint & 65535) << 32) | objid::bigint) into pending from pg_locks
  where locktype = 'advisory' and objsubid = 1
    and database = (select oid from pg_database where datname = current_database())
    and ((classid::bigint >> 16) << 48) = event_batch_tag();
  return least(last, coalesce(pending, last));
end $$;

-- Up to which batch the log was cut off.
create table log (
  only_row boolean not null primary key default true check (only_row),
  trimmed_through bigint not null
);
insert into log (trimmed_through) values (0);

create table queue (
  name text collate "C" not null primary key,
  paused boolean not null
);

create table task (
  name text collate "C" not null primary key
);

create table sweep_run (
  name text collate "C" not null primary key,
  last_at bigint not null
);
