//! Whole recipes a user can run.
