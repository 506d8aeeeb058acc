"""The sensor of a table: facts are gathered, a pure plan decides, and the evaluation carries it out."""
