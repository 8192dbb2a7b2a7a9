-- What attempts stream: pieces of results (kind output) and lines of logs (kind log). `seq` rises within a run without a
-- gap. A claim or a settle never looks at it.
create table output (
  run_id uuid not null,
  seq bigint not null,
  attempt integer not null,
  at bigint not null,
  kind text collate "C" not null,
  bytes integer not null,
  body text not null,
  primary key (run_id, seq)
);

-- How much of it a run has: the number of its oldest and newest item, and the bytes of all that is kept. `said` is how
-- many items the owner of the lease that `token` proves has appended, so that what is sent again is not kept twice;
-- `added` is how many of them the last append brought. No index on what an append updates, so that updates stay in place.
create table output_tally (
  run_id uuid not null primary key,
  first bigint not null,
  last bigint not null,
  bytes bigint not null,
  token uuid not null,
  replica_id uuid not null,
  said bigint not null,
  added integer not null
) with (fillfactor = 50);
