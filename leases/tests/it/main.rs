//! The tests of `ade-leases` that touch files and processes.

#![expect(
    clippy::disallowed_methods,
    reason = "tests end their own processes and date their own files"
)]

mod cases_a;
mod cases_b;
mod cases_c;
mod child;
mod faults;
mod lease;
mod process;
mod support;
mod waiting;
