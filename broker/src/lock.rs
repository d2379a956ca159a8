//! One broker per home.
