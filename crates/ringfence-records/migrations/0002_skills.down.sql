DROP INDEX executions_by_skill;
ALTER TABLE executions DROP COLUMN skill_hash;
ALTER TABLE executions DROP COLUMN skill;
DROP TABLE skills;
DROP TABLE skill_code;
