//! The tests of `ade-leases` that touch files and processes.

mod cases_a;
mod cases_b;
mod cases_c;
mod child;
mod faults;
mod lease;
mod process;
mod support;
mod waiting;
