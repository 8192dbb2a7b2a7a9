-- Jobs outside that are expected to ping (`check` is a word of SQL). Whatever becomes of one is decided and written in one
-- transaction. `look_at` is when it stands otherwise if no ping comes; `armed_at` is what the next success is counted from.
create table checks (
  name text not null primary key,
  definition text not null,
  version integer not null,
  created_at integer not null,
  updated_at integer not null,
  state text not null,
  down_since integer,
  down_why text,
  armed_at integer,
  last_success_at integer,
  started_at integer,
  last_ping_at integer,
  last_duration integer,
  pings integer not null,
  look_at integer
) without rowid;
create index checks_look on checks (look_at, name) where look_at is not null;

-- The newest pings; `place` rises within a check.
create table ping (
  check_name text not null,
  place integer not null,
  at integer not null,
  kind text not null,
  exit_code integer,
  duration integer,
  body text,
  primary key (check_name, place)
) without rowid;

-- Schedules that are late are counted whenever figures are asked for.
create index schedule_late on schedule (kind) where late_since is not null;
