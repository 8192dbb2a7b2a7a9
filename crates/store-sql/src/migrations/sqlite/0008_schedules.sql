-- Schedules and flows (kind). Whatever becomes of one is decided and written in one transaction. `look_at` is when to look
-- besides `next_due_at`; `fed_by` are the names of those that it comes after which have succeeded since.
create table schedule (
  id blob not null primary key,
  kind text not null,
  name text not null,
  definition text not null,
  version integer not null,
  enabled integer not null,
  created_at integer not null,
  updated_at integer not null,
  next_due_at integer,
  last_due_at integer,
  look_at integer,
  late_since integer,
  group_name text,
  cursor text,
  fed_by text not null,
  unique (kind, name)
) without rowid;
create index schedule_due on schedule (kind, next_due_at, id) where enabled and next_due_at is not null;
create index schedule_look on schedule (look_at, id) where enabled and look_at is not null;
create index schedule_group on schedule (kind, group_name) where group_name is not null;

-- What waits for its turn, and what has begun and was not seen to be over. The id is that of the run, also before there
-- is one.
create table occurrence (
  run_id blob not null primary key,
  schedule_id blob not null,
  due_at integer not null,
  due_by text not null,
  wish text,
  begun integer not null
) without rowid;
create index occurrence_schedule on occurrence (schedule_id, run_id);

-- The newest occurrences that were left out; `place` rises within a schedule.
create table occurrence_left (
  schedule_id blob not null,
  place integer not null,
  at integer not null,
  from_at integer not null,
  to_at integer not null,
  count integer not null,
  why text not null,
  primary key (schedule_id, place)
) without rowid;

-- Schedules to be looked at at once.
create table schedule_note (
  schedule_id blob not null primary key
) without rowid;

-- Which schedules come after which.
create table schedule_after (
  kind text not null,
  upstream text not null,
  schedule_id blob not null,
  primary key (kind, upstream, schedule_id)
) without rowid;
create index schedule_after_schedule on schedule_after (schedule_id);

-- The schedule whose due time a run stands for.
alter table run add column schedule_id blob;
alter table run add column due_at integer;
create index run_schedule on run (schedule_id, id) where schedule_id is not null;
