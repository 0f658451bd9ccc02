-- Registered skills: code by content hash, versions, the verdict of the scan, and which execution ran which version.
CREATE TABLE skill_code (
    -- sha256:…
    hash TEXT PRIMARY KEY,
    language TEXT NOT NULL,
    code TEXT NOT NULL,
    added BIGINT NOT NULL
);
CREATE TABLE skills (
    name TEXT NOT NULL,
    version TEXT NOT NULL,
    hash TEXT NOT NULL REFERENCES skill_code (hash),
    source TEXT NOT NULL DEFAULT 'cloud' CHECK (source IN ('local', 'community', 'cloud')),
    -- A JSON Schema.
    inputs TEXT,
    -- The verdict, and a JSON array of findings.
    verdict TEXT CHECK (verdict IN ('clean', 'review', 'dangerous')),
    findings TEXT,
    scanned BIGINT,
    sandbox_required BIGINT NOT NULL DEFAULT 1,
    disabled BIGINT NOT NULL DEFAULT 0,
    added BIGINT NOT NULL,
    PRIMARY KEY (name, version),
    CHECK (source <> 'community' OR sandbox_required = 1)
);
CREATE INDEX skills_by_hash ON skills (hash);
ALTER TABLE executions ADD COLUMN skill TEXT;
ALTER TABLE executions ADD COLUMN skill_hash TEXT;
CREATE INDEX executions_by_skill ON executions (skill);
