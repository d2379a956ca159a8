//! The folder that a broker lives in.
