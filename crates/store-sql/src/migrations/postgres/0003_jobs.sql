-- Where a detached run has begun; nothing else of a run ever changes. While it is set the run stands in a lane of
-- that host: the `task` of `ready` is a lane, which is the run's task, or `task@host`.
alter table run add column host text collate "C";

-- Detached runs outlive the replica that started them: their leases pass from one owner to the next, and `tenure`
-- counts how often. There are few of them among many leases, so they are found by an index of their own.
alter table lease add column tenure integer not null default 0;
alter table lease add column detached boolean not null default false;
update lease l set detached = true from run r where r.id = l.run_id and r.task = 'command';
create index lease_detached on lease (run_id) where detached;

-- The host of what waits for its time, so that it is found without looking at all that waits or at all that a host
-- has ever finished. Whoever moves a run on from here goes by it: it is locked together with the row.
alter table scheduled add column host text collate "C";
create index scheduled_host on scheduled (host, run_id) where host is not null;
