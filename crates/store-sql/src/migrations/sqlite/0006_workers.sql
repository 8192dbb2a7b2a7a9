-- What replicas tell of their workers, for people who ask another replica. Nothing is decided by it. A row is written when
-- a worker starts, serves, changes its class or goes, never for its heartbeats.
create table worker (
  id blob not null primary key,
  replica_id blob not null,
  pool text,
  state text not null,
  at integer not null,
  report text not null
) without rowid;
