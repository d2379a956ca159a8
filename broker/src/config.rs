//! config.toml and where each value comes from.
