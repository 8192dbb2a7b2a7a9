-- Jobs outside that are expected to ping (`check` is a word of SQL). Whatever becomes of one is decided and written under
-- the lock of its row. `look_at` is when it stands otherwise if no ping comes; `armed_at` is what the next success is
-- counted from.
create table checks (
  name text collate "C" not null primary key,
  definition text not null,
  version bigint not null,
  created_at bigint not null,
  updated_at bigint not null,
  state text collate "C" not null,
  down_since bigint,
  down_why text collate "C",
  armed_at bigint,
  last_success_at bigint,
  started_at bigint,
  last_ping_at bigint,
  last_duration bigint,
  pings bigint not null,
  look_at bigint
) with (fillfactor = 70);
create index checks_look on checks (look_at, name) where look_at is not null;

-- The newest pings; `place` rises within a check.
create table ping (
  check_name text collate "C" not null,
  place bigint not null,
  at bigint not null,
  kind text collate "C" not null,
  exit_code smallint,
  duration bigint,
  body text,
  primary key (check_name, place)
);

-- Schedules that are late are counted whenever figures are asked for.
create index schedule_late on schedule (kind) where late_since is not null;
