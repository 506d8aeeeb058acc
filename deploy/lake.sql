-- Run by Postgres when its volume is new: the database of the catalog `lake` in icepuffin.toml
CREATE DATABASE lake;
