-- Where a paused VM keeps its memory; NULL for one whose processors run. Its state follows from this and `ended_at`.
ALTER TABLE vms ADD COLUMN paused_to TEXT;
