-- Every execution: who, what, how it ended, what it used.
CREATE TABLE executions (
    id TEXT PRIMARY KEY,
    -- Milliseconds since 1970.
    began BIGINT NOT NULL,
    ended BIGINT,
    status TEXT NOT NULL,
    profile TEXT,
    engine TEXT,
    sandbox TEXT,
    -- A JSON array of arguments.
    command TEXT NOT NULL,
    -- The same as one line, to look for words in.
    line TEXT NOT NULL,
    workdir TEXT,
    -- JSON objects.
    caller TEXT,
    owner TEXT,
    report TEXT,
    exit_code BIGINT,
    signal BIGINT,
    reason TEXT,
    error TEXT,
    duration_us BIGINT,
    cpu_us BIGINT,
    peak_memory BIGINT,
    stdout_bytes BIGINT,
    stdout_head TEXT,
    stdout_tail TEXT,
    stderr_bytes BIGINT,
    stderr_head TEXT,
    stderr_tail TEXT,
    -- About what the row takes, for pruning by size.
    size BIGINT NOT NULL
);
CREATE INDEX executions_by_status ON executions (status);
CREATE INDEX executions_by_sandbox ON executions (sandbox);
