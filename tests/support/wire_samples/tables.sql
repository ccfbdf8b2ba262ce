-- What the captured workload writes into. Statements are split at every semicolon.
create type mood as enum ('sad', 'ok', 'happy');
create table plain (id int primary key, a text, n numeric, j jsonb, at timestamptz, raw bytea,
    tags text[], flag boolean, m mood);
create table toasted (id int primary key, big text, small int);
alter table toasted alter big set storage external;
create table toasted_key (k text primary key, big text, small int);
alter table toasted_key alter k set storage external, alter big set storage external;
create table keyless (a int, b text);
alter table keyless replica identity full;
create table whole (id int primary key, big text, small int);
alter table whole alter big set storage external;
alter table whole replica identity full;
create table by_index (id int primary key, code text not null unique, note text);
alter table by_index replica identity using index by_index_code_key;
create table two_keys (v int, b int, a text, primary key (b, a));
create table inserts (a int, b text);
alter table inserts replica identity nothing;
create schema "odd ""space""";
create table "odd ""space"""."Täble.1" ("Ünï cøde" int primary key, "a""b" text, "🐘" text);
create table sales (id int, region text, amount int, primary key (id, region))
    partition by list (region);
create table sales_n partition of sales for values in ('n');
create table sales_s (amount int, region text not null, id int not null);
alter table sales attach partition sales_s for values in ('s');
create table large (id int primary key, a text);
create table emptied (id int primary key);
create table emptied_too (id int primary key);
create publication everything for all tables with (publish_via_partition_root = true)
