-- What attempts stream: pieces of results (kind output) and lines of logs (kind log). `seq` rises within a run without a
-- gap. A claim or a settle never looks at it.
create table output (
  run_id blob not null,
  seq integer not null,
  attempt integer not null,
  at integer not null,
  kind text not null,
  bytes integer not null,
  body text not null,
  primary key (run_id, seq)
) without rowid;

-- How much of it a run has: the number of its oldest and newest item, and the bytes of all that is kept. `said` is how
-- many items the owner of the lease that `token` proves has appended, so that what is sent again is not kept twice.
create table output_tally (
  run_id blob not null primary key,
  first integer not null,
  last integer not null,
  bytes integer not null,
  token blob not null,
  replica_id blob not null,
  said integer not null
) without rowid;
