-- The session that a run belongs to, as JSON text.
alter table run add column session text;

-- Which replica keeps the strict session of a key. A row of a replica that is neither active nor draining says nothing.
create table session (
  pool text not null,
  key text not null,
  replica_id blob not null,
  id blob not null,
  primary key (pool, key)
) without rowid;
