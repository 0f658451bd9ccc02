ALTER TABLE executions DROP COLUMN skill_version;
ALTER TABLE skills DROP COLUMN requirements;
