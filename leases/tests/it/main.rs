//! The tests of `ade-leases` that touch files and processes.

mod cases_a;
mod child;
mod lease;
mod process;
mod support;
