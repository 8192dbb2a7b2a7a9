-- What replicas tell of their workers, for people who ask another replica. Nothing is decided by it. A row is written when
-- a worker starts, serves, changes its class or goes, never for its heartbeats.
create table worker (
  id uuid not null primary key,
  replica_id uuid not null,
  pool text collate "C",
  state text collate "C" not null,
  at bigint not null,
  report text not null
);
