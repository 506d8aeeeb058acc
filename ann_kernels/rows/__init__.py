"""Sets of rows: bitmaps, postings, checksums, equal rows."""
