//! The `ade` executable.

fn main() {}
