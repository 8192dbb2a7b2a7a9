-- Runs that compute a node of an execution, and what its definition says besides the input.
alter table run add column args text;
alter table run add column execution_id uuid;
alter table run add column node text collate "C";

-- Rows never change: another definition under the same name and version is another row, and the one
-- with the highest serial counts.
create table graph (
  serial bigint not null primary key,
  name text collate "C" not null,
  version text collate "C" not null,
  shape text not null,
  definition text not null,
  applied_at bigint not null
);
create index graph_name on graph (name, serial);

-- `definition` is the serial of the graph it goes by, `seen` that of the newest one it knows of.
-- `stamp` rises with every write, `place` is that of the last entry in its history.
create table execution (
  id uuid not null primary key,
  graph text collate "C" not null,
  definition bigint not null,
  seen bigint not null,
  singleton boolean not null,
  revision bigint not null,
  archived_at bigint,
  stamp bigint not null,
  place bigint not null,
  created_at bigint not null,
  updated_at bigint not null
) with (fillfactor = 70);
create index execution_graph on execution (graph, id);
create unique index execution_singleton on execution (graph) where singleton and archived_at is null;

-- A value that was cleared keeps its row, with `value` null. `class` is its place in the order of
-- kinds (0 number, 1 text, 2 boolean, 3 other); `number`, `text` (without NUL) and `folded` (in lower
-- case, only where that differs) are what filters and orders look at.
create table value (
  execution_id uuid not null,
  node text collate "C" not null,
  value text,
  revision bigint not null,
  set_at bigint not null,
  metadata text,
  changes bigint not null,
  first_set_at bigint,
  class smallint,
  number double precision,
  text text collate "C",
  folded text collate "C",
  primary key (execution_id, node)
) with (fillfactor = 80);

create table value_history (
  execution_id uuid not null,
  place bigint not null,
  node text collate "C" not null,
  value text,
  revision bigint not null,
  at bigint not null,
  metadata text,
  run_id uuid,
  primary key (execution_id, place)
);

-- The latest computation of each node: status is running, next, done or failed.
create table computation (
  execution_id uuid not null,
  node text collate "C" not null,
  status text collate "C" not null,
  run_id uuid,
  computed_with text not null,
  iterations integer not null,
  state text,
  error text,
  primary key (execution_id, node)
) with (fillfactor = 80);
create index computation_running on computation (run_id) where status = 'running';

-- When which execution should be looked at. Several notes of one execution are as good as one.
create table agenda (
  execution_id uuid not null,
  due_at bigint not null
) with (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000,
  autovacuum_vacuum_cost_delay = 0
);
create index agenda_due on agenda (due_at, execution_id);
create index agenda_execution on agenda (execution_id);

-- Whether two lists or objects are the same, written as compact JSON with sorted names. Two whole numbers
-- are compared exactly, any other two as double precision, so that 1 is 1.0. Token by token, on the text:
-- neither jsonb, which knows no NUL, nor its numbers would answer like that.
create function same_json(a text, b text) returns boolean language sql immutable strict as $$
  select a = b or coalesce((
    select bool_and(coalesce(x[1] = y[1], false) or case
      when x[1] ~ '^-?[0-9]' and y[1] ~ '^-?[0-9]' and (x[1] ~ '[.e]' or y[1] ~ '[.e]')
      then x[1]::double precision = y[1]::double precision else false end)
    from rows from (
      regexp_matches(a, '"(?:[^"\\]|\\.)*"|[][{}:,]|[^][{}:,"]+', 'g'),
      regexp_matches(b, '"(?:[^"\\]|\\.)*"|[][{}:,]|[^][{}:,"]+', 'g')) as t(x, y)), false)
$$;
