-- Packages that a version of a skill needs: a JSON object. And which version an execution ran.
ALTER TABLE skills ADD COLUMN requirements TEXT;
ALTER TABLE executions ADD COLUMN skill_version TEXT;
