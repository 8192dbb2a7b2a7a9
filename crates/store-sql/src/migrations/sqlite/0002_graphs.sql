-- Runs that compute a node of an execution, and what its definition says besides the input.
alter table run add column args text;
alter table run add column execution_id blob;
alter table run add column node text;

-- Rows never change: another definition under the same name and version is another row, and the one
-- with the highest serial counts.
create table graph (
  serial integer not null primary key,
  name text not null,
  version text not null,
  shape text not null,
  definition text not null,
  applied_at integer not null
);
create index graph_name on graph (name, serial);

-- `definition` is the serial of the graph it goes by, `seen` that of the newest one it knows of.
-- `stamp` rises with every write, `place` is that of the last entry in its history.
create table execution (
  id blob not null primary key,
  graph text not null,
  definition integer not null,
  seen integer not null,
  singleton integer not null,
  revision integer not null,
  archived_at integer,
  stamp integer not null,
  place integer not null,
  created_at integer not null,
  updated_at integer not null
) without rowid;
create index execution_graph on execution (graph, id);
create unique index execution_singleton on execution (graph) where singleton and archived_at is null;

-- A value that was cleared keeps its row, with `value` null. `class` is its place in the order of
-- kinds (0 number, 1 text, 2 boolean, 3 other); `number`, `text` (without NUL) and `folded` (in lower
-- case, only where that differs) are what filters and orders look at.
create table value (
  execution_id blob not null,
  node text not null,
  value text,
  revision integer not null,
  set_at integer not null,
  metadata text,
  changes integer not null,
  first_set_at integer,
  class integer,
  number real,
  text text,
  folded text,
  primary key (execution_id, node)
) without rowid;

create table value_history (
  execution_id blob not null,
  place integer not null,
  node text not null,
  value text,
  revision integer not null,
  at integer not null,
  metadata text,
  run_id blob,
  primary key (execution_id, place)
) without rowid;

-- The latest computation of each node: status is running, next, done or failed.
create table computation (
  execution_id blob not null,
  node text not null,
  status text not null,
  run_id blob,
  computed_with text not null,
  iterations integer not null,
  state text,
  error text,
  primary key (execution_id, node)
) without rowid;
create index computation_running on computation (run_id) where status = 'running';

-- When which execution should be looked at. Several notes of one execution are as good as one.
create table agenda (
  execution_id blob not null,
  due_at integer not null,
  primary key (due_at, execution_id)
) without rowid;
create index agenda_execution on agenda (execution_id);
