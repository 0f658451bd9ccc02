-- Hosts that a skill is declared to reach: a JSON array. The scan has no finding for them.
ALTER TABLE skills ADD COLUMN hosts TEXT;
