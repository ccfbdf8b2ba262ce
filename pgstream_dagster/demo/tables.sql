-- The demo's tables. Statements are separated by a line of two dashes and nothing else.
create table airlines (
    carrier text primary key,
    name text not null
);
--
create table airports (
    faa text primary key,
    name text,
    lat double precision,
    lon double precision,
    alt integer,
    tz smallint,
    dst "char",
    tzone text
);
--
create table planes (
    tailnum text primary key,
    year integer,
    type text,
    manufacturer text,
    model text,
    engines smallint,
    seats integer,
    speed integer,
    engine text
);
--
create table weather (
    origin text not null,
    year integer not null,
    month integer not null,
    day integer not null,
    hour integer not null,
    temp numeric,
    dewp numeric,
    humid numeric,
    wind_dir integer,
    wind_speed numeric,
    wind_gust numeric,
    precip numeric,
    pressure numeric,
    visib numeric,
    time_hour timestamptz
);
--
-- Observations have no key (three hours of November occur twice): old rows are sent in full.
alter table weather replica identity full;
--
create table flights (
    id bigint generated always as identity primary key,
    year integer,
    month integer,
    day integer,
    dep_time integer,
    sched_dep_time integer,
    dep_delay numeric,
    arr_time integer,
    sched_arr_time integer,
    arr_delay numeric,
    carrier text,
    flight integer,
    tailnum text,
    origin text,
    dest text,
    air_time numeric,
    distance numeric,
    hour integer,
    minute integer,
    time_hour timestamptz
);
--
create table distributions (
    name text primary key,
    version text not null,
    summary text,
    description text,
    classifiers text[] not null,
    metadata jsonb not null
);
