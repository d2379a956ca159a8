//! What must survive a broker: one SQLite database.
