-- Schedules and flows (kind). Whatever becomes of one is decided and written under the lock of its row. `look_at` is when
-- to look besides `next_due_at`; `fed_by` are the names of those that it comes after which have succeeded since.
create table schedule (
  id uuid not null primary key,
  kind text collate "C" not null,
  name text collate "C" not null,
  definition text not null,
  version bigint not null,
  enabled boolean not null,
  created_at bigint not null,
  updated_at bigint not null,
  next_due_at bigint,
  last_due_at bigint,
  look_at bigint,
  late_since bigint,
  group_name text collate "C",
  cursor text,
  fed_by text not null,
  unique (kind, name)
) with (fillfactor = 70);
create index schedule_due on schedule (kind, next_due_at, id) where enabled and next_due_at is not null;
create index schedule_look on schedule (look_at, id) where enabled and look_at is not null;
create index schedule_group on schedule (kind, group_name) where group_name is not null;

-- What waits for its turn, and what has begun and was not seen to be over. The id is that of the run, also before there
-- is one.
create table occurrence (
  run_id uuid not null primary key,
  schedule_id uuid not null,
  due_at bigint not null,
  due_by text collate "C" not null,
  wish text,
  begun boolean not null
);
create index occurrence_schedule on occurrence (schedule_id, run_id);

-- The newest occurrences that were left out; `place` rises within a schedule.
create table occurrence_left (
  schedule_id uuid not null,
  place bigint not null,
  at bigint not null,
  from_at bigint not null,
  to_at bigint not null,
  count bigint not null,
  why text collate "C" not null,
  primary key (schedule_id, place)
);

-- Schedules to be looked at at once. Several notes of one schedule are as good as one. There is no key that is unique:
-- whoever inserts must never wait for a look that deletes.
create table schedule_note (
  schedule_id uuid not null
) with (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000,
  autovacuum_vacuum_cost_delay = 0
);
create index schedule_note_schedule on schedule_note (schedule_id);

-- Who has succeeded, for the next look at a schedule that comes after. Inserted and deleted like a note.
create table schedule_fed (
  schedule_id uuid not null,
  upstream text collate "C" not null
);
create index schedule_fed_schedule on schedule_fed (schedule_id);

-- Which schedules come after which.
create table schedule_after (
  kind text collate "C" not null,
  upstream text collate "C" not null,
  schedule_id uuid not null,
  primary key (kind, upstream, schedule_id)
);
create index schedule_after_schedule on schedule_after (schedule_id);

-- The schedule whose due time a run stands for.
alter table run add column schedule_id uuid;
alter table run add column due_at bigint;
create index run_schedule on run (schedule_id, id) where schedule_id is not null;
