-- On which machine a replica runs: two servers on one machine with two data folders cannot look after each other's jobs,
-- and are told so. Rows of earlier versions do not say.
alter table replica add column machine text;
